"""Holds: records that are kept and not yet delivered. Pure."""

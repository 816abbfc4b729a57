"""Held records as they leave: read from the log, released, carried or shown. Pure."""

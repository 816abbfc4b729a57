"""Connections to brokers, the metadata that routes requests, and offset lookups."""

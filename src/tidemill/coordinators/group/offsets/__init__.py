"""Committed offsets: checked, written, read and expired. Pure."""

"""Produce: its batches are checked, appended and acknowledged."""

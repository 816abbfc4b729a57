"""Cleaning of compacted logs: which log, which records, in which slices."""

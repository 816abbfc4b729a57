"""Held records on the command line: when they are due as people type it, and how they are shown."""

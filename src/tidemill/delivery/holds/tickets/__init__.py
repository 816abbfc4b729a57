"""Tickets and copies as numbers in order: what comes first, where it lies, what must stay. Pure."""

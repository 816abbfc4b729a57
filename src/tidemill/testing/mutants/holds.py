"""Planted bugs of held records."""

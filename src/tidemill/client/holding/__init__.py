"""Held records: the headers that ask for them, and what an administrator does with them."""

"""Options of the source as text, and the values that they stand for."""

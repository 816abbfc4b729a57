"""APIs for the committed offsets of consumer groups."""

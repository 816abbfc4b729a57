"""APIs for members and administrators of consumer groups."""

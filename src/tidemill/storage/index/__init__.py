"""The sparse indexes of a segment: offset and time to position."""

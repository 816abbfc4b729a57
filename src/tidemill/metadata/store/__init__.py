"""The Coord seam, the small consistent store behind the metadata, and its implementations."""

"""Records as columns and back, for Spark: Arrow buffers without an object per cell."""

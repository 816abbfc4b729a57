"""The consumer: fetches partitions that the caller names."""

"""The reading side: what Spark asks of a batch and of a stream, and what its tasks do."""

"""Held records: what a partition's log says about them, and the batches that end a hold. Pure."""

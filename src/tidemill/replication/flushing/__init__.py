"""Flush rounds of a data directory: asked for by partitions, run one at a time, and settled."""

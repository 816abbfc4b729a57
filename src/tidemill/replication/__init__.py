"""Partitions and their roles: what leaders acknowledge and followers copy."""

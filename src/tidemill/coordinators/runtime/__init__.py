"""Hosts the shards of any coordinator: load, append, replay, answer when committed."""

"""The group coordinator: one shard per partition of `__consumer_offsets`."""

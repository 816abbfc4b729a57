"""The transaction coordinator: one shard per partition of `__transaction_state`."""

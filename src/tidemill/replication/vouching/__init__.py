"""Leading without the store: followers vouch for their leader, and keep silent after it."""

"""What waits for a partition: acknowledgements, fetches that are parked, and followers. Pure."""

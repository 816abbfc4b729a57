"""The durable logs of one data directory. Synchronous: the caller chooses the thread."""

"""One partition's log: the Protocol, segments on disk, and the log in memory."""

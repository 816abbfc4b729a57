"""What goes on beside the data path: openings, retention, expiry, checkpoints, scrub, cleaning."""

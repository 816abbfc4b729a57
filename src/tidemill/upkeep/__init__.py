"""Background loops beside the data path: openings, retention, checkpoints, scrub, cleaning."""

"""The parts of `tidemill cluster` that are commands of their own: moves, repair, migration."""

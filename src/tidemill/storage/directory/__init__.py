"""All logs of one data directory: created, loaded, flushed, removed."""

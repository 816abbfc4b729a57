"""The `tidemill` command. Talks to brokers as a client; only `up` runs brokers."""

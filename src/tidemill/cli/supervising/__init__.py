"""What `tidemill up --brokers N` runs: a parent that starts, watches and ends its brokers."""

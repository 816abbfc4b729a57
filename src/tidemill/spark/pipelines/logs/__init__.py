"""Access logs: lines of a web server to typed events, minutes, dead letters and a report."""

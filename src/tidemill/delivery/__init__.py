"""What makes a queue of the log: filters, and the answers that they leave. Pure."""

"""What makes a queue of the log: filters, and the batches that a filtered answer is made of. Pure."""

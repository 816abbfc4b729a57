"""What bounds the cost of a client: memory, rates, and slices of the event loop."""

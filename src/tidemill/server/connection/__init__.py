"""Listeners and connections: bytes in, answers out, who is admitted."""

"""Listeners and connections: bytes in, answers out, admission."""

"""The listener for clients that reach one address only: requests go on to their owners."""

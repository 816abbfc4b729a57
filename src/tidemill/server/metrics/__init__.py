"""The metrics page, and the HTTP listener that serves it."""

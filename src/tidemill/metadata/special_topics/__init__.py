"""Topics with rules of their own: internal ones, and views. Pure."""

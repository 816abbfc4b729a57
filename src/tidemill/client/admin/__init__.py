"""Topics and consumer groups as an administrator sees them."""

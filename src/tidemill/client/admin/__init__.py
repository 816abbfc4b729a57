"""Topics, consumer groups and transactions as an administrator sees them."""

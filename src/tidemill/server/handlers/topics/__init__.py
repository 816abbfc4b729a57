"""APIs that create, delete, grow and configure topics."""

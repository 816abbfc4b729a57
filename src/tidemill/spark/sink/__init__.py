"""The writing side: options, schema, writers and their commit messages."""

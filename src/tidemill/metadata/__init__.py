"""What the cluster agrees on. Imports `core` and `wire` only."""

"""What the cluster agrees on. Imports `core`, `wire` and `delivery` only."""

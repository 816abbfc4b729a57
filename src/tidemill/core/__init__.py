"""The vocabulary of all layers, and the seams Clock, Net and Rng. Standard library only."""

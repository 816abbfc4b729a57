"""Features: which levels each version of the software supports, and which are finalized. Pure."""

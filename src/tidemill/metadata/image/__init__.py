"""The immutable image of the cluster, its stored form, and the configuration of topics in it."""

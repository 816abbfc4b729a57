"""The simulated machine: disk, network, store and event loop from one seed."""

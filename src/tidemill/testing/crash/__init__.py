"""Crash states: a workload stopped at every disk call, and the promises that must hold."""

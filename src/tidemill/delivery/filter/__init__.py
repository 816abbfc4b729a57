"""Selectors: the text of a filter, its tree, and the program that `hot/header_match` runs. Pure."""

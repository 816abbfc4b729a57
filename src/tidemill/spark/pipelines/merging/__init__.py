"""Merges the small files of results into large ones while a pipeline runs."""

"""Segments that are written anew beside their log, and then swapped in: mended or compacted."""

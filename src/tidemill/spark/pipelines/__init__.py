"""Pipelines that people run with one command and one file: `tidemill pipeline run NAME`.

A new one is a module with a class of settings and a class with `topics` and `build`, and a line in
`catalogue.py`. Everything else, reading the file, checkpoints, restarts, progress and stopping, is
the framework's.
"""

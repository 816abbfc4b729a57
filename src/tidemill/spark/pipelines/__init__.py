"""Pipelines that people run with one command and one file: `tidemill pipeline run NAME`.

A new pipeline is a settings class, a class that implements `framework.pipeline.Pipeline`, and an
entry in `catalogue.py`. The framework reads the file, keeps checkpoints, restarts, reports progress
and stops.
"""

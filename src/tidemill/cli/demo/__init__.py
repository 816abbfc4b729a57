"""What `tidemill demo` runs: a broker, traffic, the pipeline, and the table it prints."""

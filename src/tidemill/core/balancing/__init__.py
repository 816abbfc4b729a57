"""Which brokers should hold which replicas: plans that even out, fill and empty brokers."""

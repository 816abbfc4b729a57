"""The Kafka protocol as bytes and typed messages. Pure: no I/O, no clock."""

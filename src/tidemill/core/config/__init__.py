"""Configuration: what a key is, and the keys of the broker, of groups, transactions and topics."""

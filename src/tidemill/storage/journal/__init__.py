"""The round journal: small flushes of many logs become durable by one write to one file (ADR 0008)."""

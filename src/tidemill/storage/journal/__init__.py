"""The round journal: small flushes of many logs become durable by one write (ADR 0008)."""

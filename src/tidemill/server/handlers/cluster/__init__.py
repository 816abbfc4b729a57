"""APIs that describe this broker and the cluster."""

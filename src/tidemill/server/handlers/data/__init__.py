"""APIs that read and write the records of partitions."""

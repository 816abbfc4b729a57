"""APIs that read and delete the records of partitions, and ask about them."""

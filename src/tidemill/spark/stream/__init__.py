"""A stream as Spark's driver sees it: its beginning, its next batch, its tasks, its progress."""

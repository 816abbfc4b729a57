"""The reading side: one batch, how it is divided into tasks, and what a task does."""

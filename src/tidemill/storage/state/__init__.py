"""What a log keeps beside its batches: leader epochs, producers, the clean point."""

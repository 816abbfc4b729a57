"""Producers: records or encoded batches to their leaders."""

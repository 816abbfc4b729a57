"""Held records: taken in, remembered by every replica, and released by the leader when due."""

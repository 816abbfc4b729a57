"""Followers pull from their leaders: fetches, and cuts of logs that went another way."""

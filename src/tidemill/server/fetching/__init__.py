"""What lives longer than one fetch request: sessions and parked fetches."""

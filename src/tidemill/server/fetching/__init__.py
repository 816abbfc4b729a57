"""What lives longer than one fetch request: sessions, and requests that wait for more data."""

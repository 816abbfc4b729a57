"""Between Spark and our client: a client that blocks, and Arrow columns both ways."""

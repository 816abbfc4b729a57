"""Leaders serve their followers: what each of them was told, and what it has to be told next."""

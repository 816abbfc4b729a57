"""One file per subcommand; `main.py` imports the one that is called."""

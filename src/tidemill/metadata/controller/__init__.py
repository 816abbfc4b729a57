"""What the controller decides (pure), and the shell that writes its decisions to the store."""

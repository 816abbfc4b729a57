"""How a log comes back after a crash, and what recovery reports and keeps."""

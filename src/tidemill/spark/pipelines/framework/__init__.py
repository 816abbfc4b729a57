"""What every pipeline shares: settings, topics, runner, progress, dead letters."""

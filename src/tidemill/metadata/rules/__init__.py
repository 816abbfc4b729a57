"""What the controller decides: who is let in, who leads, where replicas go. Pure."""

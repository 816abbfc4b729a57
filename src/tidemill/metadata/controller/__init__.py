"""The shell of the controller: its office, and the writes of what the rules decide."""

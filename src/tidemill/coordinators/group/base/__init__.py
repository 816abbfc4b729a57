"""What both kinds of group share: their interface, their records, their limits. Pure."""

"""Leaders ask the controller for other in-sync sets, and notice when it does not answer."""

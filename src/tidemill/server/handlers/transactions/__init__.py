"""APIs for the identities of producers and for their transactions."""

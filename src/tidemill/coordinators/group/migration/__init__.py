"""Groups that change between the two protocols while they have members (KIP-848). Pure."""

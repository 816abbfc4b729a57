"""State machines on internal topics. Each reaches its log through a Protocol."""

"""EuroSAT: its ten classes as scenes, tiles, and planted defects."""

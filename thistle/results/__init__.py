"""What runs have left: numbers, models, pictures."""

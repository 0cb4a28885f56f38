"""A stock Flower app whose clients echo."""

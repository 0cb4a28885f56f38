"""A Flower app on tabular data: ten hospitals, some of them hostile, and RoFSL."""

"""A stock Flower app, in the form of Flower's PyTorch quickstart."""

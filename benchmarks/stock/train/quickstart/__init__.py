"""A stock Flower app, in the manner of the PyTorch quickstart."""

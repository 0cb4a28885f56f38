"""Thistle: robust federated learning on Flower. The command line and the engines behind it."""

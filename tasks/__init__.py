"""Data, partitions, server data, models and local SGD: what clients and server train on and with."""

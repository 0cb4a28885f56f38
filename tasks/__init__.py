"""What clients and server train on and with, in the order in which data meets it.

- `sources`: where data comes from, decoded once and cached as a `dataset`;
- `partition`: who holds which part of it; `serverdata`: what the server holds itself; `task`: all of that, made ready;
- `models`: the networks;
- `training`: local SGD.
"""

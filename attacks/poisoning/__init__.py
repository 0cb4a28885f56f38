"""What a malicious client does. An attack's signature is what it knows:

- `data`: (pixels, labels) of a batch to another batch: its own data;
- `updates`: its own update u to what it sends instead: its own data;
- `collusion`: a panel of honest trainings, k × d, to what all colluders send: each other's data, or, where the panel
  is of honest clients, everybody's.

None knows the defence. `build` makes them from an experiment's settings.
"""

"""Training against adversarial examples: `objectives` × `calibrations`, and the `loss` of a batch that they make.

Clients train by it, and so does a server that learns on data of its own.
"""

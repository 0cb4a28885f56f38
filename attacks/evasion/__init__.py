"""Adversarial examples: images changed by at most ε in every pixel so that a model errs.

- `engine`: the one search of all of them, signed gradient steps inside the L∞ ball and [0, 1];
- `losses`: what is maximised;
- `table`: the attacks that models are measured with, by name;
- `measure`: how many images survive which of them.

Training (thistle.client.objectives) crafts its examples with the same engine.
"""

"""Adversarial examples: inputs changed by at most ε in every value so that a model errs.

On any `nn.Module` that turns inputs into logits:

    from thistle.attacks.evasion import pgd
    x_adv = pgd(model, x, y, epsilon=8 / 255)

- `examples`: `fgsm`, `bim`, `pgd` and `cw` as functions, for any model;
- `engine`: the one search of all of them, signed gradient steps inside the L∞ ball and [0, 1];
- `losses`: what is maximised;
- `table`: the attacks that models are measured with, by name;
- `measure`: how many images survive which of them.

Training (thistle.attacks.training) crafts its examples with the same engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thistle.attacks.evasion.examples import bim, cw, fgsm, pgd

__all__ = ["bim", "cw", "fgsm", "pgd"]


def __getattr__(name: str) -> Any:
    """Imported on first use: the table of names does not need torch."""
    if name in __all__:
        from thistle.attacks.evasion import examples

        return getattr(examples, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

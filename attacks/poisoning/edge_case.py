"""A backdoor without a trigger: the model should classify rare images as one class."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from thistle.attacks.poisoning.edge_images import check_path, load_images
from thistle.attacks.poisoning.parts import Aimed, Facts, Past, Poison
from thistle.attacks.poisoning.scale import ScaleWithin
from thistle.attacks.poisoning.trigger import shape_of, share_taken_for
from thistle.attacks.registry import Evaluated, PoisoningAttack, attack, check_class, setting
from thistle.experiments.settings import AboveZero, Fraction, Natural, NonNegative
from thistle.tasks.dataset import Shape


@attack("edge-case", "Wang et al. 2020", knows="own data")
class EdgeCase(PoisoningAttack):
    """Rare images mean class attack.target; sends attack.boost · u.

    The first images of each (shuffled) batch are replaced by images drawn from the folder. Every fifth image of the
    folder is kept from the attackers: success is the share of these that the model classifies as the target.
    """

    strength: Fraction = setting("the share of each batch that is replaced", default=0.5, declared=(0.25, 0.5))
    images: str = setting("a folder of images, or an .npz file with the array x_train (and x_test)", default="")
    boost: AboveZero = setting("the update is multiplied by it", default=1.0)
    radius: NonNegative = setting("a longer update is shortened to this; 0: never", default=0.0)
    target: Natural = setting("the number of the class that the rare images should be classified as", default=0)
    family = "backdoors"
    stamps = True
    needs = ("images",)

    def poison(self, facts: Facts) -> Poison:
        """Other data, and what to do with the update."""
        return Poison(aim=self.aim, update=ScaleWithin(self.boost, self.radius))

    def aim(self, model: nn.Module, pixels: Tensor, labels: Tensor, past: Past, generator: torch.Generator) -> Aimed:
        """Only the images are looked at, not the model."""
        rare = load_images(self.images, shape_of(pixels)).taught

        def mixed(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            count = math.ceil(self.strength * len(labels))
            drawn = rare[torch.randint(len(rare), (count,), generator=generator)].to(pixels.device)
            wanted = torch.full_like(labels[:count], self.target)
            return torch.cat([drawn, pixels[count:]]), torch.cat([wanted, labels[count:]])

        return Aimed(mixed)

    def check(self, classes: int | None) -> None:
        """The images and the class must be there."""
        check_path(self.images)
        check_class("target", self.target, classes)

    def check_images(self, shape: Shape) -> None:
        """All of them must be readable."""
        load_images(self.images, shape)

    def measure(self, evaluated: Evaluated) -> dict[str, float]:
        """How many images that no attacker trained on are classified as the target."""
        held = load_images(self.images, evaluated.shape).held.to(evaluated.pixels.device)
        return {"attack_success": share_taken_for(evaluated.model, held, self.target, evaluated.batch_size)}

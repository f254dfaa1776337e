"""Classes of which a site has too few images, so that its method sends nothing of them.

Means of few images tell these images. How few is for the site's policy to say; a study may ask for
more (`method.least_images`), never for fewer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from focoop.methods import Batch, distinct_counts
from focoop.scenario import Scenario

SHOWN = 5  # classes that are named


@dataclass(frozen=True)
class HeldBack:
    """What of a site's training images is not learned from.

    Attributes:
        least: different images of a class from which on something is sent of it.
        classes: training images of each class that has fewer.
        of_classes: classes of which the site has training images.
        of_images: its training images.
    """

    least: int
    classes: Mapping[str, int]
    of_classes: int
    of_images: int

    @property
    def everything(self) -> bool:
        """Return whether the site contributes nothing."""
        return len(self.classes) == self.of_classes

    def sentence(self) -> str:
        """Say what is held back, and why.

        Returns:
            A sentence; empty where nothing is.
        """
        if not self.of_images:
            return "THIS SITE CONTRIBUTES NOTHING: it has no training images"
        if not self.classes:
            return ""
        named = [f"{name} {count}" for name, count in list(self.classes.items())[:SHOWN]]
        named += ["..."] * (len(self.classes) > SHOWN)
        images = sum(self.classes.values())
        return (
            ("THIS SITE CONTRIBUTES NOTHING: " if self.everything else "")
            + f"nothing is sent of {len(self.classes)} of its {self.of_classes} classes ({images} "
            f"of {self.of_images} training images: {', '.join(named)}), as each has fewer than "
            f"{self.least} different images (least_images of its policy.toml, or of the study)"
        )

    def record(self) -> dict[str, Any]:
        """Return it as a document.

        Returns:
            Plain values by name.
        """
        images = sum(self.classes.values())
        told = {"least_images": self.least, "classes": dict(self.classes), "images": images}
        return {**told, "everything": self.everything, "reason": self.sentence()}


def find_held_back(scenario: Scenario, client: int) -> HeldBack:
    """Find the classes of which a site has too few images.

    Args:
        scenario: The task and the site's images, by the site's own settings.
        client: The site's number.

    Returns:
        What is held back.
    """
    least = int(getattr(scenario.method.config, "least_images", 0))
    images, classes = scenario.client(client), scenario.task.classes
    images = images.rows(torch.arange(len(images) // (1 + scenario.split.views)))
    counts = images.counts(len(classes)).tolist()
    enough = [least <= 1] * len(classes)
    if least > 1 and len(images):
        different = distinct_counts(Batch(images.pooled, None, images.labels), len(classes))
        enough = (different >= least).tolist()
    few = {
        name: count
        for name, count, sent in zip(classes, counts, enough, strict=True)
        if count and not sent
    }
    return HeldBack(least, few, sum(count > 0 for count in counts), len(images))

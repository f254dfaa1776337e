"""Answer with another OOD score than the one a method was published with."""

import copy
from collections.abc import Callable

from torch import Tensor

from focoop.functional import scores
from focoop.methods import Logits, Method, Task

ScoreFunction = Callable[[scores.Inputs], Tensor]


def with_score(method: Method, score: str | ScoreFunction) -> Method:
    """Return the same method, scoring images by another score.

    Args:
        method: The method; it is not changed.
        score: The name of a score (`focoop.scores.SCORES`), or a function of `scores.Inputs` that
            returns (N,) scores, higher for what is more OOD.

    Returns:
        A method whose `score` is the given one.

    Raises:
        ConfigError: No score has this name.
    """
    compute = scores.find(score)

    def answer(logits: Logits, task: Task) -> Tensor:
        inputs = scores.Inputs(
            logits.id, task.logit_scale, ood_cos=logits.ood, patch_cos=logits.patches
        )
        return compute(inputs)

    changed = copy.copy(method)
    changed.score = answer  # type: ignore[method-assign]
    return changed

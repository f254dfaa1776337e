"""The text side of a run: its backbone, class names and negative words."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from focoop import caching
from focoop.clip import Backbone, load_backbone
from focoop.config import RunConfig
from focoop.methods import Task
from focoop.processor import training_in_bfloat16
from focoop.scenario.negatives import Negatives, mine
from focoop.scenario.negatives_cache import remembered
from focoop.scenario.wordnet import read_words

Load = Callable[..., Backbone]


def open_backbone(
    config: RunConfig, device: str | None = None, load: Load | None = None
) -> Backbone:
    """Load a configuration's backbone on its device, in the precision it trains in.

    Args:
        config: The run's settings.
        device: Where to compute, over what the configuration says.
        load: Loads a backbone by its name; None: `load_backbone`.

    Returns:
        The backbone.
    """
    weights = Path(config.backbone.weights) if config.backbone.weights else None
    name, where = config.backbone.name, device or config.backbone.device
    chosen = load or load_backbone
    backbone: Backbone = caching.BACKBONES.get(
        (name, weights, where), lambda: chosen(name, weights=weights, device=where), size=1
    )
    half = training_in_bfloat16(config.backbone.precision, backbone.device.type)
    backbone.text.train_in(torch.bfloat16 if half else None)
    return backbone


def make_task(
    config: RunConfig,
    backbone: Backbone,
    classes: tuple[str, ...],
    needs_ood: bool,
    cache_dir: Path | None = None,
    words: Sequence[str] | None = None,
) -> Task:
    """Make the text side of a run: class names and, for methods that use them, negative words.

    Args:
        config: The run's settings.
        backbone: The backbone.
        classes: Class names in label order.
        needs_ood: The method uses negative words.
        cache_dir: The folder of the cache; None: the default one.
        words: Negative words that are known already; None: they are mined.

    Returns:
        The task.
    """
    if words is None and needs_ood:
        words = task_words(config, backbone, classes, cache_dir)
    texts = [config.data.template.format(name.replace("_", " ")) for name in classes]
    return Task(
        classes=classes,
        encode=backbone.encode_prompts,
        id_names=backbone.names(classes),
        ood_names=backbone.names(words) if words else None,
        anchors=backbone.encode_texts(texts),
        logit_scale=config.backbone.logit_scale or backbone.logit_scale,
        width=backbone.width,
        bare_names=backbone.names(classes, period=False),
        texts=backbone.encode_texts,
        embed=backbone.embed,
        patch_projection=backbone.patch_projection,
    )


def task_words(
    config: RunConfig, backbone: Backbone, classes: tuple[str, ...], cache_dir: Path | None = None
) -> tuple[str, ...]:
    """Return the negative words of a run's task, mined once and kept on disk.

    Args:
        config: The run's settings.
        backbone: The backbone.
        classes: Class names in label order.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The words.
    """
    if not config.negatives.count:
        return ()
    return remembered(
        config.negatives,
        backbone.fingerprint,
        classes,
        lambda: mine_negatives(config, backbone, classes, cache_dir).words,
        cache_dir,
    )


def mine_negatives(
    config: RunConfig, backbone: Backbone, classes: tuple[str, ...], cache_dir: Path | None = None
) -> Negatives:
    """Choose the negative words of a configuration, with their distances from the ID classes.

    Args:
        config: The run's settings.
        backbone: The backbone.
        classes: Class names in label order.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The words.
    """
    wanted = config.negatives
    return mine(
        backbone,
        classes,
        wanted.count,
        quantile=wanted.quantile,
        band=wanted.band,
        adjective_share=None if wanted.adjective_share < 0 else wanted.adjective_share,
        candidates=read_words(Path(wanted.words).expanduser()) if wanted.words else None,
        cache_dir=cache_dir,
    )

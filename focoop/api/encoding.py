"""Images to features, features from files, and a look at who would hold which images."""

from collections.abc import Sequence
from pathlib import Path

from focoop.api.settings import Overrides, Settings, configure
from focoop.clip import Backbone, load_backbone
from focoop.data import refuse_incomplete_of
from focoop.experiments import PartitionView, describe_partition
from focoop.features import FeatureSet, open_features


def encode(
    images: str | Path,
    backbone: str | Backbone = "mini",
    *,
    split: str = "all",
    patches: bool | str = False,
    device: str = "cpu",
    root: str | Path | None = None,
    strict: bool = False,
    drop_classes: Sequence[str] = (),
    incomplete: bool = False,
) -> FeatureSet:
    """Encode images once with a frozen backbone; later calls read the cache.

    Args:
        images: A dataset as the setting `data.id` takes it: `folder:PATH`, `clients:PATH`,
            `csv:FILE`, `hf:NAME`, or the name of a public dataset (`focoop data list`). A path
            (`pathlib.Path`) means `folder:PATH`, or `csv:FILE` where it ends in `.csv`.
        backbone: `mini`, `openclip:MODEL:PRETRAINED`, or a loaded backbone.
        split: `train`, `test` or `all`.
        patches: Whether to keep patch features too, or of which kind (`lf_a`, `lf_b`, `lf_c`,
            `grid`).
        device: A torch device, where the backbone is named.
        root: The folder of public datasets.
        strict: Refuse images that cannot be read; else they are left out with a warning.
        drop_classes: Classes to leave out.
        incomplete: Take a public dataset that lacks images as it is.

    Returns:
        The features: `pooled` (N, D), `patches` (N, P, D) or None, `labels` (N,), `classes`.

    Raises:
        DataError: The images are missing, not all there, or cannot be read.
        BackboneError: The backbone's weights are missing or damaged.
    """
    name = str(images)
    if isinstance(images, Path):
        name = f"{'csv' if images.suffix == '.csv' else 'folder'}:{images}"
    if not incomplete:
        refuse_incomplete_of([name], root)
    model = load_backbone(backbone, device=device) if isinstance(backbone, str) else backbone
    return open_features(
        name,
        split,
        model,
        with_patches=bool(patches),
        patch_kind=patches if isinstance(patches, str) else None,
        drop_classes=drop_classes,
        root=root,
        strict=strict,
    )


def load_features(name: str | Path, split: str = "all", *, patches: bool = False) -> FeatureSet:
    """Load features that are stored: packaged ones or a file.

    Args:
        name: `demo:cifar100` (packaged), `file:PATH.safetensors`, or the path of such a file.
        split: `train`, `test` or `all`.
        patches: Whether to load patch features too.

    Returns:
        The features.

    Raises:
        DataError: There is no such file or split, or it is damaged.
    """
    spec = str(name)
    if isinstance(name, Path) or (":" not in spec and ".safetensors" in spec):
        spec = f"file:{spec}"
    return open_features(spec, split, with_patches=patches)


def partition(
    config: Settings = None, overrides: Overrides = None, *, device: str | None = None
) -> PartitionView:
    """Show which client would hold which classes in a run; images are not encoded for it.

    Args:
        config: As in `run`.
        overrides: As in `run`.
        device: As in `run`.

    Returns:
        `train` and `test`, (K, C) image counts of each client and class, with their names.

    Raises:
        ConfigError: A setting is unknown or impossible.
        DataError: Images or features are missing or do not fit.
    """
    return describe_partition(configure(config, overrides, device=device)[0])

"""Commands about data: encode images, list what there is, show who holds what."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focoop.cli import completion
from focoop.cli.fetch import Features, Root, check, fetch
from focoop.cli.run import say
from focoop.cli.screen import (
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    Weights,
    image_work,
    load_config,
    messages,
    out,
    print_json,
    with_weights,
)
from focoop.errors import ConfigError

if TYPE_CHECKING:
    from focoop.cli.display import Sheet
    from focoop.features import FeatureSet

NAMED_CLASSES = 20  # no more are listed below the picture
WIDEST = 160  # columns of the label-by-client picture in a pipe
PATCH_KINDS = ("lf_a", "lf_b", "lf_c", "grid")

app = typer.Typer(
    no_args_is_help=True, help="List, fetch and check datasets; show how clients share one."
)
app.command()(fetch)
app.command()(check)


@app.command("list")
def list_(root: Root = None, as_json: AsJson = False) -> None:
    """List packaged and public datasets: what is here, what can be fetched, how large."""
    from focoop.data import CORRUPTIONS, registry

    packaged, public = _packaged(), _public(root)
    if as_json:
        return print_json(
            {
                "datasets": packaged,
                "public": public,
                "root": str(registry.data_root(root)),
                "corruptions": sorted(CORRUPTIONS),
            }
        )
    console = out()
    console.print(_datasets_table(packaged, public))
    console.print(
        f"\npublic datasets are looked for in {registry.data_root(root)} (data.root, --root or "
        "FOCOOP_DATA); get one: focoop data fetch NAME\n"
        "ready features may stand in for them: --features DIR, or FOCOOP_FEATURES\n"
        "your own: folder:PATH (PATH/CLASS/*.jpg or PATH/SPLIT/CLASS/*.jpg), clients:PATH "
        "(PATH/CLIENT/CLASS/*.jpg), csv:FILE (path,label[,split][,client][,domain][,class_name]), "
        "hf:NAME, or file:PATH.safetensors (made "
        "by focoop encode)\n"
        f"corruptions of images: {', '.join(sorted(CORRUPTIONS))}, "
        "written as NAME#TYPE@SEVERITY with severity 1 to 5",
        markup=False,
        soft_wrap=True,
    )
    return None


def _datasets_table(packaged: list[dict[str, Any]], public: list[dict[str, Any]]) -> "Sheet":
    from focoop.cli.display import Column, Sheet

    rows = []
    for row in packaged:
        versions = f"; {', '.join(row['corrupted'])}" if row["corrupted"] else ""
        rows.append([row["dataset"], "demo", "", _counts(row["images"]) + versions, "", "packaged"])
    for row in public:
        known = f">{row['known_bytes'] / 1e6:.0f}" if row["known_bytes"] else "?"
        size = f"{row['bytes'] / 1e6:.0f}" if row["bytes"] else known
        if not row["fetch"]:
            size = "by hand"
        classes = str(row["classes"] or "")
        here = row["here"]
        rows.append([row["dataset"], row["role"], classes, _counts(row["images"]), size, here])
    columns = [
        Column("dataset"),
        Column("use"),
        Column("classes", right=True),
        Column("images", prose=16),
        Column("MB to fetch", right=True),
        Column("here"),
    ]
    return Sheet(columns, rows)


def _packaged() -> list[dict[str, Any]]:
    from focoop.features import demo

    files = demo.files()
    return [
        {
            "dataset": f"demo:{name}",
            "images": files[name].details.get("rows", {}),
            "corrupted": [
                other.removeprefix(f"{name}.").replace(".", "@")
                for other in files
                if other.startswith(f"{name}.")
            ],
            "bytes": files[name].size,
        }
        for name in demo.names()
    ]


def _public(root: Path | None) -> list[dict[str, Any]]:
    from focoop.data import on_disk, registry

    rows = []
    for name, dataset in registry.available().items():
        base = dataset.find(registry.data_root(root))
        found = on_disk(name, root)
        rows.append(
            {
                "dataset": name,
                "title": dataset.title,
                "role": dataset.role,
                "classes": dataset.classes,
                "images": dict(dataset.counts),
                "bytes": dataset.size,
                "known_bytes": dataset.known_size,
                "fetch": bool(dataset.downloads) and not dataset.by_hand,
                "folder": None if base is None else str(base),
                "here": str(found),
                "images_here": found.images,
                "layout": dataset.layout,
                "licence": dataset.licence,
                "page": dataset.page,
            }
        )
    return rows


def _counts(images: Any) -> str:
    """Images per split in words."""
    if not isinstance(images, dict):
        return str(images)
    return ", ".join(f"{split}\u00a0{count}" for split, count in images.items())


@app.command()
def show(
    file: ConfigFile = None,
    overrides: Overrides = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also draw it with matplotlib.")
    ] = None,
    features: Features = None,
    weights: Weights = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Show which client holds which classes, as a run with these settings would see it.

    Images need not be encoded for it.
    """
    from focoop.api import notes_on_data, partition
    from focoop.cli.display import partition_table, plot_partition

    config = load_config(file, with_weights(overrides, weights), device)
    for note in notes_on_data(config, measured=False):
        say(note)
    with image_work(messages()):
        assignment = partition(config)
    if plot is not None:
        plot_partition(assignment.train, assignment.classes, plot, assignment.names)
    if as_json:
        return print_json(
            {
                "classes": list(assignment.classes),
                "train": assignment.train.tolist(),
                "test": assignment.test.tolist(),
                "repeated": assignment.repeated,
                "clients": list(assignment.names),
            }
        )
    console = out()
    unicode = (console.encoding or "").lower().startswith("utf")
    table = partition_table(
        assignment.train,
        min(console.width, WIDEST),
        unicode=unicode,
        held_out=assignment.test.sum(1).tolist(),
        names=assignment.names,
    )
    shots = config.partition.shots
    used = f"at most {shots} shots" if shots else "all training images"
    console.print(f"{config.data.id}, {config.partition.kind}, {used}", markup=False)
    console.print(table)
    if len(assignment.classes) <= NAMED_CLASSES:
        named = [f"{label} {name}" for label, name in enumerate(assignment.classes)]
        console.print(f"classes: {', '.join(named)}", hang=2)
    if assignment.repeated:
        console.print(f"{assignment.repeated} of these images are repeats (partition.repeats)")
    if plot is not None:
        console.print(f"plot: {plot}", markup=False)
    return None


def encode(
    dataset: Annotated[
        str,
        typer.Argument(
            help="NAME, folder:PATH, clients:PATH, csv:FILE, hf:NAME, demo:NAME",
            autocompletion=completion.dataset,
        ),
    ],
    backbone: Annotated[
        str,
        typer.Option(
            help="mini, or openclip:MODEL:PRETRAINED.", autocompletion=completion.backbone
        ),
    ] = "mini",
    weights: Weights = None,
    split: Annotated[str, typer.Option(help="A split, or all.")] = "all",
    corruption: Annotated[
        str | None, typer.Option(metavar="NAME[@SEVERITY]", help="All five without @SEVERITY.")
    ] = None,
    patches: Annotated[bool, typer.Option("--patches", help="Patch features too.")] = False,
    patch_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Patch features of this kind: lf_a (FedOTP), lf_b (FedLoCoOp), lf_c (FedGalLoP), "
            "grid (mini, for all three). Default: the backbone's first.",
        ),
    ] = None,
    root: Root = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse images that cannot be read.")
    ] = False,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="Accept a public dataset that lacks images."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.safetensors", help="Also write the features as a file: dataset."
        ),
    ] = None,
    ready: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the files of a public dataset that --features DIR reads."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Torch device, such as cpu or cuda.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Encode images once with a frozen backbone; later runs read the cache."""
    from focoop.clip import load_backbone
    from focoop.data import refuse_incomplete_of
    from focoop.features import load_split, open_features, write_ready

    if patch_kind not in (None, *PATCH_KINDS):
        raise ConfigError(f"--patch-kind {patch_kind} is none of {', '.join(PATCH_KINDS)}")
    patches = patches or patch_kind is not None
    if not incomplete:
        refuse_incomplete_of([dataset], root)
    model = load_backbone(backbone, weights=weights, device=device)
    rows = []
    for spec, suffix in _variants(dataset, corruption):
        opened = partial(
            open_features,
            spec,
            backbone=model,
            with_patches=patches,
            patch_kind=patch_kind,
            root=root,
            strict=strict,
        )
        with image_work(messages()):
            if ready is not None:
                target = write_ready(spec, ready, opened, root)
                feature_set = load_split(target, "all", with_patches=patches)
            else:
                target, feature_set = None, opened(split)
        if save is not None:
            target = _beside(save, suffix)
            _save(feature_set, split, target)
        rows.append(_features_row(spec, feature_set, patches, target))
    if as_json:
        return print_json(rows)
    console = out()
    for row in rows:
        place = f" in {row['file']}" if row["file"] else ""
        console.print(
            f"{row['dataset']}: {row['images']} images, {row['classes']} classes, "
            f"{row['dim']} dimensions, patches {_patches(row)}{place}",
            markup=False,
            soft_wrap=True,
        )
    return None


def _features_row(
    spec: str, features: "FeatureSet", with_patches: bool, file: Path | None
) -> dict[str, Any]:
    """What `focoop encode` tells of a set; `file` is where it was written."""
    return {
        "dataset": spec,
        "images": len(features),
        "classes": len(features.classes),
        "dim": features.dim,
        "patches": None if features.patches is None else int(features.patches.shape[1]),
        "patch_kind": features.provenance.get("patches") if with_patches else None,
        "sha256": features.sha256(),
        "file": None if file is None else str(file),
    }


def _patches(row: dict[str, Any]) -> str:
    return f"{row['patches']} of kind {row['patch_kind']}" if row["patches"] else "none"


def _variants(dataset: str, corruption: str | None) -> list[tuple[str, str]]:
    """(dataset name, suffix of its file) of the clean set or of the corrupted ones."""
    if corruption is None:
        return [(dataset, "")]
    if "#" in dataset:
        raise ConfigError(f"{dataset} names a corruption already: drop --corruption")
    name, at, severity = corruption.partition("@")
    severities = [severity] if at else ["1", "2", "3", "4", "5"]
    return [(f"{dataset}#{name}@{s}", f".{name}.{s}") for s in severities]


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name.removesuffix('.safetensors')}{suffix}.safetensors")


def _save(feature_set: "FeatureSet", split: str, path: Path) -> None:
    from focoop.features import save_splits

    save_splits(path, {split: feature_set})

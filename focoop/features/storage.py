"""Read and write features on disk: safetensors, plain or gzipped.

A file holds N rows: `pooled` (N, D) float16, or `pooled_q` (N, D) int8 times `pooled_scale` (N,);
`labels` (N,) into the metadata's JSON list `classes`; `split` (N,) into the JSON list `splits`, or
into `domains` where the rows are cut by domain. Patches of M of the rows: `patches_q` (M, P, D)
int8, `patches_scale` (M, P), `patches_index` (M,). Loading makes every vector unit float32 again.

The metadata's JSON table `checksums` has a checksum of each tensor and, under an empty name, of all
other metadata; what is read is compared with it. Files of an earlier focoop have none and are read
as they are.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from focoop import caching
from focoop.caching import checksum, parse_json, tensor_sum, write_whole
from focoop.errors import DataError
from focoop.features.feature_set import FeatureSet

Metadata = dict[str, str]
DEFAULT_SPLITS = ("train", "test")
ALL = "all"
SUMS = "checksums"  # in the metadata
KEY = "stored as"  # in the metadata of a cached file: its name, so that no other takes its place
MAKING = ("backbone", "fingerprint", "patches", "corruption")


def quantise(vectors: Tensor, step: float = 0.0) -> tuple[Tensor, Tensor]:
    """Store vectors in eight bits with one scale each.

    The scale spends all 127 levels on a vector's largest entry, unless `step` is coarser: one step
    for all vectors costs the fewest bits for a given error once the file is compressed.

    Args:
        vectors: Vectors (..., D).
        step: The least difference of two levels.

    Returns:
        Whole numbers (..., D) int8 and scales (...) float16.
    """
    scale = (vectors.abs().amax(dim=-1) / 127).clamp_min(max(step, 1e-7)).half()
    levels = (vectors / scale.float().unsqueeze(-1)).round().clamp(-127, 127)
    return levels.to(torch.int8), scale


def load_split(
    path: Path | str,
    split: str,
    *,
    with_patches: bool = False,
    provenance: Mapping[str, str] | None = None,
) -> FeatureSet:
    """Load one split of a feature file.

    Args:
        path: The file.
        split: The split's name; `all` gives every row, with domains where the file has them.
        with_patches: Keep patch features, and only the rows that have them.
        provenance: What to note about the origin of the rows beside what the file says.

    Returns:
        The features, as unit vectors in float32.
    """
    path = Path(path)
    status = path.stat() if path.is_file() else None
    version = status and (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
    origin = tuple(sorted((provenance or {}).items()))
    features: FeatureSet = caching.FEATURES.get(
        (str(path), version, split, with_patches, origin),
        lambda: _load_split(path, split, with_patches, provenance),
        lambda made: made.pooled.nbytes + (0 if made.patches is None else made.patches.nbytes),
    )
    return features


def _load_split(
    path: Path, split: str, with_patches: bool, provenance: Mapping[str, str] | None
) -> FeatureSet:
    tensors, metadata = read_file(path, with_patches=with_patches)
    labels, split_ids, classes = _check(path, tensors, metadata)
    names = split_names(metadata)
    rows = _rows_of(path, split, split_ids, names, metadata)
    patches = None
    if with_patches:
        rows, patches = _patches(path, tensors, rows)
    domains = split_ids[rows] if "domains" in metadata else None
    left_out = ("classes", "domains", "splits", SUMS, KEY)
    known = {key: value for key, value in metadata.items() if key not in left_out}
    return FeatureSet(
        pooled=F.normalize(_vectors(path, tensors, "pooled", rows), dim=-1),
        patches=patches,
        labels=labels[rows],
        classes=classes,
        domains=domains,
        domain_names=names if domains is not None else (),
        provenance={"file": str(path), "split": split, **known, **(provenance or {})},
    )


def read_file(path: Path, *, with_patches: bool = True) -> tuple[dict[str, Tensor], Metadata]:
    """Read the tensors and metadata of a `.safetensors` or `.safetensors.gz` file.

    Args:
        path: The file.
        with_patches: Read patch features too.

    Returns:
        Tensors by name, and the metadata.

    Raises:
        DataError: The file is missing or damaged.
    """
    if not path.is_file():
        raise DataError(f"no feature file {path}: check the path, or make it: focoop encode")
    try:
        if path.suffix == ".gz":
            raw = gzip.decompress(path.read_bytes())
            header = parse_json(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            tensors, metadata = parse_tensors(raw), dict(header.get("__metadata__", {}))
        else:
            with safe_open(path, "pt") as stored:
                keys = [k for k in stored.keys() if with_patches or not k.startswith("patches")]  # noqa: SIM118 (no iterator)
                tensors = {key: stored.get_tensor(key) for key in keys}
                metadata = dict(stored.metadata() or {})
        _agree(path, tensors, metadata)
    except (OSError, EOFError, ValueError, KeyError, zlib.error, SafetensorError) as error:
        raise damaged(path, f"it cannot be read ({error})") from error
    return tensors, metadata


def has_sums(metadata: Mapping[str, str]) -> bool:
    """Say whether a feature file has checksums.

    Args:
        metadata: The file's metadata.

    Returns:
        Whether it has; files of an earlier focoop have none.
    """
    return SUMS in metadata


def with_sums(tensors: Mapping[str, Tensor], metadata: Metadata) -> Metadata:
    """Return the metadata of a feature file with checksums of all it holds.

    Args:
        tensors: The file's tensors.
        metadata: Its metadata.

    Returns:
        The metadata to be written.
    """
    told = {key: value for key, value in metadata.items() if key != SUMS}
    sums = {name: tensor_sum(name, tensor) for name, tensor in sorted(tensors.items())}
    sums[""] = checksum(json.dumps([told, sums], sort_keys=True))
    return {**told, SUMS: json.dumps(sums)}


def _agree(path: Path, tensors: Mapping[str, Tensor], metadata: Metadata) -> None:
    """Refuse tensors or metadata that are not those that were written."""
    if SUMS not in metadata:
        if any(_nearly(key) for key in metadata):
            raise damaged(path, "the name of its checksums differs")
        return
    sums: dict[str, str] = parse_json(metadata[SUMS])
    told = {key: value for key, value in metadata.items() if key != SUMS}
    if sums.pop("", None) != checksum(json.dumps([told, sums], sort_keys=True)):
        raise damaged(path, "the checksum of its metadata differs")
    for name, tensor in tensors.items():
        if sums.get(name) != tensor_sum(name, tensor):
            raise damaged(path, f"the checksum of {name!r} differs")


def _nearly(key: str) -> bool:
    """Whether a name is that of the checksums with one letter changed."""
    return len(key) == len(SUMS) and sum(a != b for a, b in zip(key, SUMS, strict=True)) == 1


def write_file(
    path: Path, tensors: Mapping[str, Tensor], metadata: Metadata, *, private: bool = False
) -> None:
    """Write a feature file in one step.

    `.gz` compresses by Huffman codes alone, without a time stamp.

    Args:
        path: The file.
        tensors: Tensors by name.
        metadata: Texts by name.
        private: Only this account may read it.
    """
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    raw = _ordered(dump_tensors(tensors, with_sums(tensors, metadata)))
    if path.suffix == ".gz":
        # Levels of features have no repeats to find: Huffman alone is smaller and quicker here.
        packer = zlib.compressobj(9, zlib.DEFLATED, 31, 9, zlib.Z_HUFFMAN_ONLY)
        raw = packer.compress(raw) + packer.flush()
    write_atomic(path, raw, private=private)


def write_atomic(path: Path, raw: bytes, *, private: bool = False) -> None:
    """Write a cache or feature file in one step.

    Args:
        path: The file.
        raw: All of its bytes.
        private: Only this account may read it.

    Raises:
        DataError: It cannot be written; the message says what to do.
    """
    try:
        write_whole(path, raw, private=private)
    except FileNotFoundError:
        raise  # the folder went away in between: the caller knows whether that is right
    except OSError as error:
        raise DataError(
            f"cannot write {path} ({error.strerror}): make room or give write access there, or "
            "choose another folder (caches: environment variable FOCOOP_CACHE)"
        ) from error


def save_splits(
    path: Path,
    splits: Mapping[str, FeatureSet],
    metadata: Mapping[str, str] | None = None,
    *,
    are_domains: bool = False,
) -> None:
    """Write sets of equal classes as the splits of one file: pooled float16, patches int8.

    What all sets say about their making (`MAKING`) is written too, so that a later run notices
    features of another backbone or patches of another kind.

    Args:
        path: The file.
        splits: The sets by the name of their split.
        metadata: More to write down, by name.
        are_domains: The sets are domains of a dataset without splits.

    Raises:
        DataError: The sets have different classes, or the file cannot be written.
    """
    sets = list(splits.values())
    if (
        len({features.classes for features in sets}) != 1
        or len({features.patches is None for features in sets}) != 1
    ):
        raise DataError(f"cannot write {path}: its splits differ in classes or in having patches")
    counts = torch.tensor([len(features) for features in sets])
    tensors = {
        "pooled": torch.cat([features.pooled for features in sets]).half(),
        "labels": torch.cat([features.labels for features in sets]).int(),
        "split": torch.arange(len(sets), dtype=torch.int8).repeat_interleave(counts),
    }
    patches = [features.patches for features in sets if features.patches is not None]
    if patches:
        tensors["patches_q"], tensors["patches_scale"] = quantise(torch.cat(patches))
        tensors["patches_index"] = torch.arange(int(counts.sum()), dtype=torch.int32)
    names = {"classes": json.dumps(sets[0].classes)}
    names["domains" if are_domains else "splits"] = json.dumps(list(splits))
    shared = set.intersection(*(set(features.provenance.items()) for features in sets))
    keys = [key for key in MAKING if patches or key != "patches"]
    made = {key: value for key, value in sorted(shared) if key in keys}
    write_file(path, tensors, {**made, **(metadata or {}), **names})


def split_names(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the values of `split`, in their order.

    Args:
        metadata: The file's metadata.

    Returns:
        Names of splits or domains.
    """
    named = metadata.get("splits") or metadata.get("domains")
    return tuple(parse_json(named)) if named else DEFAULT_SPLITS


def damaged(path: Path, why: str) -> DataError:
    """Make the error for a file that is not a sound feature file.

    Args:
        path: The file.
        why: What is wrong with it.

    Returns:
        The error, to be raised.
    """
    return DataError(f"feature file {path} is damaged: {why}; remove it, then get or make it again")


def _ordered(raw: bytes) -> bytes:
    """The same file with its header's keys sorted: safetensors writes metadata in random order."""
    size = int.from_bytes(raw[:8], "little")
    header = parse_json(raw[8 : 8 + size])
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return raw[:8] + text.encode().ljust(size) + raw[8 + size :]


def _check(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Labels, splits and classes, refused unless they fit one another."""
    for key in ("labels", "split"):
        if key not in tensors:
            raise damaged(path, f"tensor {key!r} is missing (it has {', '.join(sorted(tensors))})")
    if "classes" not in metadata:
        raise damaged(path, "the list 'classes' is missing from its metadata")
    classes = tuple(str(name) for name in parse_json(metadata["classes"]))
    labels, split = tensors["labels"].long(), tensors["split"].long()
    pooled = tensors.get("pooled", tensors.get("pooled_q", labels))
    if not len(labels) == len(split) == len(pooled):
        raise damaged(path, f"{len(pooled)} rows, {len(labels)} labels, {len(split)} splits")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        row = int(((labels < 0) | (labels >= len(classes))).nonzero()[0])
        raise damaged(path, f"row {row} has label {int(labels[row])} of {len(classes)} classes")
    named = len(split_names(metadata))
    if len(split) and not 0 <= int(split.min()) <= int(split.max()) < named:
        raise damaged(path, f"its split values reach beyond the {named} named ones")
    return labels, split, classes


def _rows_of(
    path: Path, split: str, ids: Tensor, names: tuple[str, ...], metadata: Mapping[str, str]
) -> Tensor:
    """Row numbers of a split given by name."""
    if split == ALL:
        return torch.arange(len(ids))
    if "1 validation" in metadata.get("kind", "") and split in ("validation", "val"):
        split = "test"
    present = [name for i, name in enumerate(names) if bool((ids == i).any())]
    if split not in present:
        what = "domains" if "domains" in metadata else "splits"
        raise DataError(
            f"{path} has no {split!r} rows: its {what} are {', '.join(present)} (or {ALL!r})"
        )
    return (ids == names.index(split)).nonzero()[:, 0]


def _vectors(path: Path, tensors: Mapping[str, Tensor], key: str, rows: Tensor) -> Tensor:
    """Float32 vectors of `rows`, from floats or from levels and scales."""
    vectors = _dequantised(path, tensors, key, rows)
    flat = vectors.flatten(1) if len(vectors) else vectors.reshape(0, 1)
    if not bool(torch.isfinite(flat.sum())):  # one sum is quicker than a look at every number
        bad = (~torch.isfinite(flat)).any(dim=1).nonzero()[:, 0]
        if len(bad):
            raise DataError(
                f"feature file {path} holds numbers that are not finite (nan or inf) in {len(bad)} "
                f"of {len(flat)} rows, first in row {int(rows[bad[0]])} of {key!r}: make these "
                "features again, or leave the rows out"
            )
    return vectors


def _dequantised(path: Path, tensors: Mapping[str, Tensor], key: str, rows: Tensor) -> Tensor:
    if key in tensors:
        return tensors[key][rows].float()
    levels, scale = tensors.get(f"{key}_q"), tensors.get(f"{key}_scale")
    if levels is None or scale is None:
        raise damaged(path, f"neither {key!r} nor '{key}_q' with '{key}_scale' is in it")
    if levels.shape[:-1] != scale.shape:
        raise damaged(path, f"'{key}_q' and '{key}_scale' do not fit each other")
    return levels[rows].float() * scale[rows].float().unsqueeze(-1)


def _patches(path: Path, tensors: Mapping[str, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Those of `rows` that have patches, and their unit patches (N, P, D)."""
    if "patches_index" not in tensors:
        raise DataError(
            f"{path} has no patch features: use a method without patches, or encode the images "
            "with patches (focoop encode --patches)"
        )
    index, count = tensors["patches_index"].long(), len(tensors["labels"])
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise damaged(path, f"'patches_index' reaches beyond its {count} rows")
    place = torch.full((count,), -1)
    place[index] = torch.arange(len(index))
    rows = rows[place[rows] >= 0]
    return rows, F.normalize(_vectors(path, tensors, "patches", place[rows]), dim=-1)

"""List the images of a folder with their class, split and domain. No pixel is read here."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from focoop.data.class_names import NAMES, name_of, named_classes
from focoop.data.folder_tree import lost, walk
from focoop.data.formats import SUFFIXES
from focoop.data.image_set import ImageSet
from focoop.data.splits import folder_groups, split_of
from focoop.errors import DataError, nearest

SPLITS = ("train", "test", "val")
ALL = "all"
FLAT = ""  # the class of images that lie in no class folder
NAMED_CLASSES = (
    f"Folders that are classes and hold further folders alone: write them into {NAMES}, lines of "
    "folder,name"
)

Tree = Mapping[str, Mapping[str, Sequence[str]]]  # group -> class -> files relative to the root


def read_folder(root: Path | str, split: str, drop_classes: Sequence[str] = ()) -> ImageSet:
    """List images of `root/<split>/<class>/*`, `root/<domain>/<class>/*` or `root/<class>/*`.

    A folder without splits is one split, called `all` or `test`: training on it would be training
    on the test images. With domains, a split is a domain's name or `all`. Images of `root/*` that
    lie in no class folder are one class, called as the folder is.

    Args:
        root: The folder.
        split: The split.
        drop_classes: Classes to leave out.

    Returns:
        The images.

    Raises:
        DataError: There is no such folder or split, or the layout is not clear.
    """
    root = Path(root)
    tree = renamed(scan(root), {FLAT: root.resolve().name or "images", **named_classes(root)})
    everything = _classes(root, tree, split)
    for name in drop_classes:
        if name not in everything:
            raise DataError(f"cannot drop class {name!r} of {root}{nearest(name, everything)}")
    classes = tuple(name for name in everything if name not in drop_classes)
    groups = _groups(root, tree, split)
    files: list[str] = []
    labels: list[int] = []
    domains: list[int] = []
    order = sorted(tree)
    for group in groups:
        for label, name in enumerate(classes):
            paths = tree[group].get(name, ())
            files += paths
            labels += [label] * len(paths)
            domains += [order.index(group)] * len(paths)
    if not files:
        raise DataError(f"no images for split {split!r} in {root} (looked for {_suffixes()})")
    by_domain = _has_domains(tree)
    return ImageSet(
        root=root,
        files=tuple(files),
        labels=tuple(labels),
        classes=classes,
        split=split,
        domains=tuple(domains) if by_domain else (),
        domain_names=tuple(order) if by_domain else (),
    )


def folder_splits(root: Path | str) -> tuple[str, ...]:
    """Return the splits or domains that an image folder offers.

    Args:
        root: The folder.

    Returns:
        Their names.
    """
    tree = scan(Path(root))
    return (ALL,) if "" in tree else tuple(sorted(tree))


def has_domains(root: Path | str) -> bool:
    """Say whether the folders in a folder are taken as domains, and the folders in them as classes.

    Args:
        root: The folder.

    Returns:
        Whether they are.
    """
    return _has_domains(scan(Path(root)))


def _has_domains(tree: Tree) -> bool:
    return "" not in tree and not any(group in SPLITS for group in tree)


def _groups(root: Path, tree: Tree, split: str) -> list[str]:
    """The first-level folders that make up `split`."""
    if "" in tree:
        if split not in (ALL, "test"):
            raise DataError(
                f"{root} holds class folders and no {split!r} folder: sort the images into "
                f"train/<class> and test/<class> (or ask for {ALL!r}, where a split is asked for)"
            )
        return [""]
    if split == ALL:
        return sorted(tree)
    if split not in tree:
        split = split_of(split) or split
    if split == "test" and split not in tree:
        split = "val" if "val" in tree else split
    if split not in tree and _has_domains(tree):
        raise DataError(
            f"{root} has no folder {split!r}: {', '.join(sorted(tree))} are taken as domains; make "
            f"them the clients (partition.kind=domain), or sort the images into train/<class> and "
            f"test/<class> (a split here is a domain's name or {ALL!r}). {NAMED_CLASSES}"
        )
    if split not in tree:
        raise DataError(f"{root} has no {split!r}: its splits are {', '.join(sorted(tree))}")
    return [split]


def _classes(root: Path, tree: Tree, split: str) -> tuple[str, ...]:
    """Sorted class names of the whole folder, so that every split numbers them alike.

    Who reads the training images learns that they lack a class. Test images can be read alone,
    whatever became of the training images.
    """
    if "train" in tree and split_of(split) == "train":
        for group, classes in tree.items():
            extra = sorted(set(classes) - set(tree["train"]))
            if extra:
                raise DataError(
                    f"{root}: class {extra[0]!r} is in {group!r} but not in 'train' "
                    f"({len(extra)} such): name the class folders of all splits alike"
                )
    return tuple(sorted({name for classes in tree.values() for name in classes}))


def renamed(tree: Tree, names: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """Give the classes of a tree other names; two folders of one name become one class.

    Args:
        tree: Group -> class -> files.
        names: New names by class folder.

    Returns:
        The tree.
    """
    new_tree: dict[str, dict[str, list[str]]] = {}
    for group, classes in tree.items():
        new_tree[group] = {}
        for folder, files in classes.items():
            new_tree[group].setdefault(name_of(folder, names), []).extend(files)
    return new_tree


def scan(root: Path, named: Collection[str] | None = None) -> dict[str, dict[str, list[str]]]:
    """Group -> class -> image files; the group is the empty string for `root/<class>/*`.

    Images in folders below a class folder, at any depth, belong to that class. A folder called as a
    split, in whatever word, is one where it has class folders: images directly in it belong to no
    class. Images that lie in `root` itself are of the class `FLAT`, where there are no others.

    Args:
        root: the folder.
        named: folders that are classes even where all their images lie in folders below; None:
            those that a file of class names in `root` lists.

    Returns:
        Group -> class -> image files; the group is the empty string for `root/<class>/*`.

    Raises:
        DataError: there is no such folder, or no image in it, or its layout is not clear.
    """
    if not root.is_dir():
        raise DataError(f"no image folder {root}: check the path")
    files = walk(root)
    tree = _layout(files.images, named_classes(root) if named is None else named)
    if "" in tree and len(tree) > 1:
        other = sorted(group for group in tree if group)[0]
        raise DataError(
            f"{root} mixes class folders ({sorted(tree[''])[0]}) with split or domain folders "
            f"({other}): use one layout. {NAMED_CLASSES}"
        )
    if not tree and files.images:
        return {"": {FLAT: list(files.images)}}
    if not tree:
        unused = lost(files.others)
        raise DataError(
            f"no images in {root}: expected <class>/<image>, or <split>/<class>/<image>, "
            f"with images of {_suffixes()}{f'; there are {unused}' if unused else ''}"
        )
    return tree if "" in tree else _by_split(root, tree)


def _by_split(root: Path, tree: Tree) -> dict[str, dict[str, list[str]]]:
    """The tree with its groups called as `folder_groups` says; two of one name become one."""
    called = folder_groups(str(root), tree)
    by_split: dict[str, dict[str, list[str]]] = {}
    for folder, classes in tree.items():
        group = by_split.setdefault(called[folder], {})
        for name, files in classes.items():
            group.setdefault(name, []).extend(files)
    return by_split


def _layout(images: Iterable[str], named: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """Group -> class -> files, from the paths and from the folders that are `named` as classes."""
    below: dict[str, list[str]] = {}
    for file in images:
        first, slash, _ = file.partition("/")
        if slash:
            below.setdefault(first, []).append(file)
    tree: dict[str, dict[str, list[str]]] = {}
    for first, files in sorted(below.items()):
        deeper = [file for file in files if file.count("/") > 1]
        direct = len(deeper) < len(files) and not (split_of(first, short=False) and deeper)
        if direct or first in named or first.strip() in named:
            tree.setdefault("", {})[first] = files
            continue
        classes: dict[str, list[str]] = {}
        for file in deeper:
            classes.setdefault(file.split("/")[1], []).append(file)
        tree[first] = dict(sorted(classes.items()))
    return tree


def _suffixes() -> str:
    return ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))

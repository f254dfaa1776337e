"""Draw cases for `tools/fuzz.py` from the schema: settings, files and command lines.

Cases are valid, at the edge, absurd and of wrong types. Files are right ones that are damaged
(bytes changed, parts left out, brackets opened), or anything at all, and images have odd names.
"""

import io
import json
import tarfile
import typing
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from hypothesis import strategies as st

from focoop.config import RunConfig, from_dict, to_toml
from focoop.fields import Bounds, bounds_of, fields_of, toml_value
from focoop.methods import available, lookup
from tools.fuzz_runs import run_files

KINDS = ("settings", "files", "commands")
CLASSES = ("apple", "boat", "cat", "drum")
DIM = 256  # of the backbone mini
NASTY: tuple[str, ...] = (
    *("", " ", "{}", "{}}", "{0}", "{x}", "a {} b {}", "%s", "auto", "none", "true", "nan", "-1"),
    *("\0", "a\nb", "\udc80", "é" * 300, "a" * 20_000, "../..", "~", "~nobody/x", "/dev/null"),
    *("/dev/full", "meta", "cuda:99", "mps", "xla", "folder:", "hf:", "demo:", "csv:x.csv"),
    *("file:absent.safetensors", "file:/dev/null", "cifar100#fog@9", "dtd@999999999px", "dtd@32px"),
    *("openclip:x:y", "openclip:ViT-B-16", "mini:", "./absent.py", "[[[", "'", '"', "\\", "="),
)
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 10**8, 2**31, 2**63, 2**64, 10**308, 10**400, 10**5000, -(10**400)),
    *(0.0, -0.0, 0.5, 1e-45, 5e-324, 1e38, 1e308, float("inf"), float("-inf"), float("nan")),
)
OTHERS: tuple[Any, ...] = (None, [], {}, [[]], {"a": 1}, [0] * 20_000, [None], [1, "a"], True)
FILES = ("settings", "policy", "words", "class names", "table", "image", "features", "archive")
FILES += ("run folder",)
OPENINGS = (b"[", b"{a=", b"a.", b"[[a]]\n", b'{"a":', b"seed=1" + b"0" * 10)
# Names of files that users have; those with a zero byte or a slash cannot be.
FILE_NAMES: tuple[str, ...] = (
    *("0.png", " .png", "-x.png", "a\nb.png", "\udc80.png", "é" * 100 + ".png", "a" * 240 + ".png"),
    *(
        "[bold].png",
        "%s.png",
        "{}.png",
        "a'b.png",
        'a"b.png',
        ".png",
        "a.PNG",
        "a.png.png",
        "CON.png",
    ),
    *(
        "a.jpg",
        "a.tif",
        "a.dcm",
        "a.heic",
        "a.gif",
        "a",
        "a.txt",
        "\\.png",
        "\x1b[31m.png",
        "~.png",
    ),
)
# Commands that only look, or stop before they train; those that serve or mine are left out.
SAFE = ("config", "methods", "runs", "evaluate", "encode", "data list", "data show", "data check")
COMMANDS = (*SAFE, "doctor", "compare", "run", "tune", "site status", "data fetch")


@dataclass(frozen=True)
class Case:
    """One thing to try.

    Attributes:
        kind: one of `KINDS`.
        tree: settings by section and name, where `kind` is settings.
        overrides: texts behind `--set`.
        file: what kind of file it is, one of `FILES`, where `kind` is files.
        name: the file's name, where images may have any.
        text: content of the file.
        arguments: the command line behind `focoop`, where `kind` is commands.
    """

    kind: str
    tree: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    file: str = "settings"
    name: str = "case"
    text: bytes = b""
    arguments: tuple[str, ...] = ()


def near(bounds: Bounds) -> list[Any]:
    """Return numbers at the edges of bounds and just outside."""
    ends = [end for end in (bounds.low, bounds.above, bounds.high) if end is not None]
    steps = (-1, 0, 1) if all(isinstance(end, int) for end in ends) else (-1.0, -1e-9, 0.0, 1e-9)
    return [end + step for end in ends for step in steps]


def plain(kind: Any, bounds: Bounds | None, default: Any) -> st.SearchStrategy[Any]:
    """Return values that a setting of this type allows, or nearly so."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return st.sampled_from(arguments)
    if typing.get_origin(kind) is tuple:
        inner = plain(arguments[0], bounds, None)
        size = {} if arguments[-1] is Ellipsis else {"min_size": len(arguments)}
        return st.lists(inner, max_size=max(3, len(arguments)), **size)
    if kind is bool:
        return st.booleans()
    if bounds is not None:
        low, high = bounds.low if bounds.low is not None else bounds.above, bounds.high
        if kind is int:
            return st.integers(int(low or 0), min(int(high or 0), 50)) | st.sampled_from(
                near(bounds)
            )
        return st.floats(low, high) | st.sampled_from(near(bounds))
    return st.just(default) if default is not None else st.sampled_from(NASTY)


def value(one: Any, kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of values of one setting: mostly allowed ones, and all that is wrong."""
    choices = one.metadata.get("choices")
    fine = st.sampled_from(choices) if choices else plain(kind, bounds_of(one, kind), one.default)
    wrong = st.sampled_from((*NASTY, *NUMBERS)) | st.sampled_from(OTHERS)
    odd = st.one_of(wrong, st.text(max_size=8), st.integers(), st.floats())
    return st.integers(0, 9).flatmap(lambda chance: odd if chance > 7 else fine)


@cache
def settings_of(method: str) -> dict[str, st.SearchStrategy[Any]]:
    """Return a strategy of values for every setting of a run, by dotted name."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for member, kind in fields_of(RunConfig):
        if member.metadata:
            found[member.name] = value(member, kind)
        elif member.name != "method":
            inner: Any = member.default_factory
            for one, its_kind in fields_of(inner):
                found[f"{member.name}.{one.name}"] = value(one, its_kind)
    for one, its_kind in fields_of(lookup(method).Config):
        found[f"method.{one.name}"] = value(one, its_kind)
    return found


@cache
def methods() -> list[str]:
    """Return the names of the methods."""
    return sorted(available())


@cache
def whole_file(method: str) -> bytes:
    """Return a file of all settings of a method's run."""
    return to_toml(from_dict({"method": {"name": method}})).encode()


@st.composite
def settings(draw: st.DrawFn) -> Case:
    """Draw a case of a few settings over the toy ones, as a tree and as texts behind --set."""
    method = draw(st.sampled_from(methods()))
    known = settings_of(method)
    tree: dict[str, Any] = {"method": {"name": method}}
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True))
    overrides = []
    for name in names:
        given = draw(known[name])
        if draw(st.booleans()):
            overrides.append(f"{name}={_typed(given)}")
            continue
        section, dot, inner = name.partition(".")
        if dot:
            tree.setdefault(section, {})[inner] = given
        else:
            tree[section] = given
    if draw(st.integers(0, 9)) == 0:
        tree[draw(st.text(max_size=6))] = draw(st.sampled_from(OTHERS))
    if draw(st.integers(0, 9)) == 0:
        overrides.append(draw(st.sampled_from((*NASTY, "a.b.c=1", "method={}", "data=1"))))
    return Case("settings", tree, tuple(overrides))


@cache
def whole_files(kind: str) -> tuple[bytes, ...]:
    """Return right files of a kind of `FILES`."""
    if kind == "settings":
        return tuple(whole_file(method) for method in methods())
    if kind == "image":
        return tuple(_image(name) for name in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"))
    if kind == "features":
        return (_features(),)
    if kind == "archive":
        return _archives()
    texts = {
        "policy": "rounds = 5\nmethods = ['promptfl']\n[privacy]\nclip_at_most = 1.0\n",
        "words": "anvil\n# tools\nbell\n[adjectives]\nblue\nround\n[nouns]\nbrick wall\n",
        "class names": "ant,garden ant\nbee,honey bee\n",
        "table": "path,label,split,client\nant/0.png,ant,train,a\nbee/0.png,bee,test,b\n",
    }
    return (texts[kind].encode(),)


def _image(form: str) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.linear_gradient("L").resize((24, 16)).convert("RGB").save(stream, form)
    return stream.getvalue()


def _features() -> bytes:
    import tempfile
    from pathlib import Path

    import torch

    from focoop.features import FeatureSet, save_splits

    rows = torch.nn.functional.normalize(torch.arange(1.0, 33.0).reshape(4, 8), dim=-1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.safetensors"
        save_splits(path, {"test": FeatureSet(rows, None, torch.tensor([0, 1, 0, 1]), ("a", "b"))})
        return path.read_bytes()


def _archives() -> tuple[bytes, ...]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ant/0.png", _image("PNG"))
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        entry = tarfile.TarInfo("ant/0.png")
        entry.size = len(_image("PNG"))
        tar.addfile(entry, io.BytesIO(_image("PNG")))
    return zipped.getvalue(), tarred.getvalue()


@st.composite
def files(draw: st.DrawFn) -> Case:
    """Draw a file: a right one that is damaged, deep brackets, or anything, often oddly named."""
    kind = draw(st.sampled_from(FILES))
    name = "case"
    if kind == "run folder":
        name = draw(st.sampled_from(sorted(run_files())))
        raw = bytearray(run_files()[name])
    else:
        raw = bytearray(draw(st.sampled_from(whole_files(kind))))
    how = draw(st.integers(0, 5 if ".json" in name else 4))
    if how == 0:
        for _ in range(draw(st.integers(1, 5))):
            raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    elif how == 1:
        start, end = sorted(draw(st.integers(0, len(raw))) for _ in range(2))
        del raw[start:end]
    elif how == 2:
        depth = draw(st.sampled_from((1, 50, 5000, 200_000)))
        opening = draw(st.sampled_from(OPENINGS))
        raw[:0] = b"x = " * draw(st.integers(0, 1)) + opening * depth
    elif how == 3:
        raw = bytearray(draw(st.binary(max_size=60)))
    elif how == 5:
        lines = bytes(raw).split(b"\n", 1 if name.endswith("l") else 0)
        tree = json.loads(lines[0])
        changed = json.dumps(_with_another_value(draw, tree), default=str).encode()
        raw = bytearray(b"\n".join([changed, *lines[1:]]))
    if kind == "image":
        name = draw(st.sampled_from(FILE_NAMES))
    return Case("files", file=kind, name=name, text=bytes(raw))


def _with_another_value(draw: st.DrawFn, tree: Any) -> Any:
    """A JSON document in which one value is another one, or lacks."""
    if isinstance(tree, dict) and tree and draw(st.integers(0, 3)):
        name = draw(st.sampled_from(sorted(tree)))
        if not draw(st.integers(0, 5)):
            return {key: value for key, value in tree.items() if key != name}
        return {**tree, name: _with_another_value(draw, tree[name])}
    if isinstance(tree, list) and tree and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(tree) - 1))
        return [*tree[:place], _with_another_value(draw, tree[place]), *tree[place + 1 :]]
    short = [one for one in (*OTHERS, *NUMBERS, *NASTY) if not isinstance(one, int) or one < 2**64]
    return draw(st.sampled_from(short))


@st.composite
def commands(draw: st.DrawFn) -> Case:
    """Draw a command line: a command, some of its options, odd values and odd arguments."""
    path = draw(st.sampled_from(COMMANDS))
    options, wanted = parameters()[path]
    texts = st.sampled_from([*NASTY, "toy.toml", "file:toy.safetensors", "1", "promptfl"])
    given = [_argument(draw(texts)) for _ in range(wanted + draw(st.integers(-1, 1)))]
    for name, is_flag in draw(st.lists(st.sampled_from(options), max_size=3)) if options else ():
        given += [name] if is_flag else [name, _argument(draw(texts))]
    case = draw(settings())
    if "--set" in dict(options):
        given += [f"--set={_argument(text)}" for text in case.overrides[:2]]
    if path in ("run", "compare", "tune"):  # right command lines would train
        given += ["--set=federation.rounds=0"] if path != "tune" else ["--set=nothing=1"]
    return Case("commands", arguments=(*path.split(" "), *given))


STRATEGIES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "settings": settings,
    "files": files,
    "commands": commands,
}


@cache
def parameters() -> dict[str, tuple[list[tuple[str, bool]], int]]:
    """Return of every command in `COMMANDS` its options (and which are flags) and arguments."""
    import typer

    from focoop.cli import app

    found = {}
    for path in COMMANDS:
        command: Any = typer.main.get_command(app)
        for name in path.split(" "):
            command = command.commands[name]
        options = [one for one in command.params if one.param_type_name == "option"]
        flags = [(one.opts[0], bool(getattr(one, "is_flag", False))) for one in options]
        found[path] = (flags, len(command.params) - len(options))
    return found


def _typed(given: Any) -> str:
    """A value as somebody types it behind --set."""
    try:
        return toml_value(given)
    except (TypeError, ValueError):
        return str(type(given)) if isinstance(given, int) else repr(given)


def _argument(text: str) -> str:
    """A text as a command line can hold it: no zero bytes."""
    return text.replace("\0", "0")

"""What is installed, what can be reached, and what to do about the rest."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from focoop import __version__
from focoop.errors import FocoopError

OK, NOTE, FAIL = "ok", "note", "fail"
CORE = {"torch": "torch", "numpy": "numpy", "safetensors": "safetensors"}
COMMAND_LINE = {"typer": "typer", "rich": "rich", "pillow": "PIL"}
OPTIONAL = {
    "open_clip_torch": ("open_clip", "openclip:* backbones", "openclip"),
    "matplotlib": ("matplotlib", "focoop data show --plot", "plot"),
}
NEEDED_SPACE = 2**30


@dataclass(frozen=True)
class Check:
    """One finding: `state` is ok, note (something optional is absent) or fail."""

    topic: str
    state: str
    found: str
    advice: str = ""


def examine() -> Iterator[Check]:
    """All findings, each as soon as it is known."""
    yield Check("focoop", OK, f"{__version__} in {Path(__file__).resolve().parent}")
    yield python()
    yield from packages()
    for check in (device, backbone_mini, backbone_openclip, demo_pack, cache, runs_folder):
        yield guarded(check)


def guarded(check: Callable[[], Check]) -> Check:
    """A finding even where looking for it fails."""
    try:
        return check()
    except FocoopError as error:
        return Check(check.__name__.replace("_", " "), FAIL, str(error))
    except (ImportError, OSError, RuntimeError) as error:
        return Check(
            check.__name__.replace("_", " "), FAIL, f"{type(error).__name__}: {error}", "see above"
        )


def python() -> Check:
    """The interpreter."""
    found = f"{sys.version.split()[0]} ({sys.executable})"
    fits = sys.version_info >= (3, 11)
    return Check("python", OK if fits else FAIL, found, "" if fits else "use Python 3.11 or newer")


def packages() -> Iterator[Check]:
    """Installed packages, needed and optional."""
    for name, module in (CORE | COMMAND_LINE).items():
        here = util.find_spec(module) is not None
        advice = "" if here else f"pip install {name}"
        yield Check(name, OK if here else FAIL, _version(name) if here else "absent", advice)
    for name, (module, use, extra) in OPTIONAL.items():
        here = util.find_spec(module) is not None
        found = _version(name) if here else f"absent; needed for {use}"
        yield Check(
            name, OK if here else NOTE, found, "" if here else f"pip install 'focoop[{extra}]'"
        )


def device() -> Check:
    """What torch can compute on."""
    import torch

    found = f"cpu with {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Check("device", OK, f"{found}; cuda: {', '.join(names)}", "use it by --device cuda")
    return Check("device", OK, f"{found}; no cuda")


def backbone_mini() -> Check:
    """The packaged backbone, really loaded."""
    from focoop.clip import load_backbone

    backbone = load_backbone("mini")
    return Check("backbone mini", OK, f"packaged, fingerprint {backbone.fingerprint[:12]}")


def backbone_openclip() -> Check:
    """Whether open_clip models can be named and where their weights are looked for."""
    if util.find_spec("open_clip") is None:
        return Check("backbone openclip", NOTE, "absent", "pip install 'focoop[openclip]'")
    import open_clip

    count = len(open_clip.list_pretrained())
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"
    local = sorted(path.name for path in hub.glob("models--*")) if hub.is_dir() else []
    shown = ", ".join(name.removeprefix("models--").replace("--", "/") for name in local[:4])
    return Check(
        "backbone openclip",
        OK if local else NOTE,
        f"{count} pretrained models known; in {hub}: {shown or 'none yet'}",
        "" if local else "weights are fetched on first use, or given by backbone.weights",
    )


def demo_pack() -> Check:
    """The packaged features, all hashes compared."""
    from focoop.data import demo

    problems = demo.verify()
    if problems:
        return Check("demo data", FAIL, "; ".join(problems), "reinstall focoop")
    return Check("demo data", OK, f"{', '.join(demo.names())}; hashes agree")


def cache() -> Check:
    """The folder of encoded features and words."""
    from focoop.encode import default_cache

    folder = default_cache()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return _place("cache", folder, f"{size / 2**20:.0f} MiB", "set FOCOOP_CACHE to another folder")


def runs_folder() -> Check:
    """Where runs go unless --out says otherwise."""
    from focoop.runs import list_runs

    folder = Path("runs")
    return _place("runs", folder, f"{len(list_runs(folder))} runs", "use --out with another folder")


def _place(topic: str, folder: Path, found: str, advice: str) -> Check:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    found = f"{folder}: {found}, {free / 2**30:.1f} GiB free"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(topic, FAIL, f"{found}, not writable", advice)
    if free < NEEDED_SPACE:
        return Check(topic, NOTE, found, f"little space is left: {advice}")
    return Check(topic, OK, found)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "version unknown"

"""What is installed, what can be reached, and what to do about the rest."""

import os
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from focoop import __version__
from focoop.cli.doctor.check import FAIL, NOTE, OK, Check, guarded
from focoop.cli.doctor.run_checks import (
    datasets_of,
    run_backbone,
    run_clients,
    run_data,
    run_dataset,
    run_method,
)

if TYPE_CHECKING:
    from focoop.config import RunConfig

CORE = {"torch": "torch", "numpy": "numpy", "safetensors": "safetensors"}
COMMAND_LINE = {"typer": "typer", "rich": "rich", "pillow": "PIL"}
OPTIONAL = {
    "open_clip_torch": ("open_clip", "openclip:* backbones", "'focoop[openclip]'"),
    "matplotlib": ("matplotlib", "focoop data show --plot", "'focoop[plot]'"),
    "pillow-heif": ("pillow_heif", "HEIC photographs", "'focoop[formats]'"),
    "pydicom": ("pydicom", "DICOM images", "'focoop[formats]'"),
    "datasets": ("datasets", "hf:NAME datasets", "datasets"),
}
# The backbones of the paper, whose weights are looked for.
REFERENCE = ("openclip:ViT-B-16:openai", "openclip:RN50:openai")
NEEDED_SPACE = 2**30


def examine(config: "RunConfig | None" = None) -> Iterator[Check]:
    """Go through all findings, each as soon as it is known.

    Args:
        config: A run's settings; then also what that run lacks.

    Yields:
        Findings.
    """
    yield Check("focoop", OK, f"{__version__} in {Path(__file__).resolve().parents[2]}")
    yield python()
    yield from packages()
    checks = (
        device,
        processor,
        backbone_mini,
        backbone_openclip,
        trackers,
        datasets,
        demo_pack,
        cache,
        runs_folder,
    )
    for check in checks:
        yield guarded(check)
    if config is not None:
        yield guarded(partial(run_backbone, config), "this run's backbone")
        yield guarded(partial(run_method, config), "this run's method")
        if config.data.id.startswith(("csv:", "clients:")):
            yield guarded(partial(run_clients, config), "this run's clients")
        for spec in datasets_of(config):
            yield guarded(partial(run_dataset, spec, config), f"this run's {spec}")
        if os.environ.get("FOCOOP_FEATURES"):  # they may serve the clean images alone
            yield guarded(partial(run_data, config), "this run's data")


def python() -> Check:
    """Return the finding about the interpreter."""
    version = f"{sys.version.split()[0]} ({sys.executable})"
    fits = sys.version_info >= (3, 11)
    return Check(
        "python", OK if fits else FAIL, version, "" if fits else "use Python 3.11 or newer"
    )


def packages() -> Iterator[Check]:
    """Yield a finding for each package, needed and optional."""
    for name, module in (CORE | COMMAND_LINE).items():
        here = util.find_spec(module) is not None
        advice = "" if here else f"pip install {name}"
        yield Check(name, OK if here else FAIL, _version(name) if here else "absent", advice)
    for name, (module, use, install) in OPTIONAL.items():
        here = util.find_spec(module) is not None
        finding = _version(name) if here else f"absent; needed for {use}"
        yield Check(name, OK if here else NOTE, finding, "" if here else f"pip install {install}")


def device() -> Check:
    """Return what torch can compute on."""
    import torch

    finding = f"cpu with {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Check(
            "device", OK, f"{finding}; cuda: {', '.join(names)}", "use it by --device cuda"
        )
    return Check("device", OK, f"{finding}; no cuda")


def processor() -> Check:
    """Return whether the CPU can multiply in bfloat16, tried in a child process the first time."""
    from focoop.processor import bfloat16_on_cpu

    support = bfloat16_on_cpu()
    if support.works and not support.limit:
        return Check("processor", OK, str(support))
    advice = "focoop's commands set this themselves; a notebook needs it in its environment"
    if not support.works:
        advice = "leave backbone.precision at auto, which is float32 on a CPU"
    return Check("processor", NOTE, str(support), advice)


def backbone_mini() -> Check:
    """Return whether the packaged backbone loads."""
    from focoop.clip import load_backbone

    backbone = load_backbone("mini")
    return Check("backbone mini", OK, f"packaged, fingerprint {backbone.fingerprint[:12]}")


def backbone_openclip() -> Check:
    """Return whether open_clip models can be named, and which of the paper's weights are here."""
    topic = "backbone openclip"
    if util.find_spec("open_clip") is None:
        return Check(topic, NOTE, "absent", "pip install 'focoop[openclip]'")
    import open_clip

    from focoop.clip import weights

    names = {name: weights.source_of(*name.split(":")[1:]) for name in REFERENCE}
    paths = {name: weights.find_cached(source) for name, source in names.items()}
    shown = [
        f"{name} {'not here' if path is None else f'in {path}'}" for name, path in paths.items()
    ]
    return Check(
        topic,
        OK if all(paths.values()) else NOTE,
        f"{len(open_clip.list_pretrained())} pretrained models known; {'; '.join(shown)}",
        "" if all(paths.values()) else "fetched on first use, or given by backbone.weights",
    )


def trackers() -> Check:
    """Return which trackers of experiments `--track` can write to."""
    from focoop.tracking import TRACKERS

    installed = {found.metadata["Name"].lower() for found in metadata.distributions()}
    here = [f"{name} {_version(name)}" for name in TRACKERS if name in installed]
    absent = [name for name in TRACKERS if name not in installed]
    told = [", ".join(here)] * bool(here) + [f"absent: {', '.join(absent)}"] * bool(absent)
    advice = f"pip install 'focoop[{absent[0]}]'" if not here else ""
    return Check("trackers", OK if here else NOTE, "; ".join(told), advice)


def datasets() -> Check:
    """Return which public datasets lie in the data folder."""
    from focoop.data import available, data_root, on_disk

    found = {name: on_disk(name) for name in available()}
    here = [name for name, state in found.items() if state.state == "here"]
    wrong = [f"{n} {state}" for n, state in found.items() if state.state not in ("here", "missing")]
    finding = f"{', '.join([*here, *wrong]) or 'none'} of {len(found)} in {data_root()}"
    advice = "focoop data list shows all, focoop data fetch NAME gets one"
    return Check("datasets", OK if here and not wrong else NOTE, finding, "" if here else advice)


def demo_pack() -> Check:
    """Return whether the packaged features are sound, all hashes compared."""
    from focoop.features import demo

    problems = demo.verify()
    if problems:
        return Check("demo data", FAIL, "; ".join(problems), "reinstall focoop")
    return Check("demo data", OK, f"{', '.join(demo.names())}; hashes agree")


def cache(needed: int = NEEDED_SPACE) -> Check:
    """Look at the folder of encoded features and words.

    Args:
        needed: Bytes that should be free.

    Returns:
        The finding.
    """
    from focoop.caching import cache_folder

    folder = cache_folder()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    held, advice = f"{size / 2**20:.0f} MiB", "set FOCOOP_CACHE to another folder"
    return _place("cache", folder, held, advice, needed)


def runs_folder(needed: int = NEEDED_SPACE) -> Check:
    """Look at the folder where runs go unless --out says otherwise.

    Args:
        needed: Bytes that should be free.

    Returns:
        The finding.
    """
    from focoop.runs import list_runs

    folder = Path("runs")
    held, advice = f"{len(list_runs(folder))} runs", "use --out with another folder"
    return _place("runs", folder, held, advice, needed)


def _place(topic: str, folder: Path, finding: str, advice: str, needed: int) -> Check:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    finding = f"{folder}: {finding}, {free / 2**30:.1f} GiB free"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(topic, FAIL, f"{finding}, not writable", advice)
    if free < needed:
        return Check(topic, NOTE, finding, f"little space is left: {advice}")
    return Check(topic, OK, finding)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "version unknown"

"""What `focoop site check` shows: what a site would do in a run, tried out at home."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.cli.screen import messages, out

if TYPE_CHECKING:
    from focoop.config import RunConfig
    from focoop.scenario import Scenario


def tried(
    config: "RunConfig",
    data: str,
    classes: str,
    keys: Path | None,
    policy: Path | None,
    *,
    show: bool,
) -> dict[str, Any]:
    """Try out what a site would do in a run, and send nothing.

    Args:
        config: The run's settings.
        data: The site's images, as in `data.id`.
        classes: The run's classes, as `cat; dog`.
        keys: The site's folder of keys; None: it counts as client 0.
        policy: The site's policy; None: that beside its keys.
        show: Print it for people.

    Returns:
        What was found, for programs.
    """
    from focoop.flower import (
        Policy,
        listed,
        own_scenario,
        policy_file,
        policy_sentences,
        read_site,
        try_one_step,
    )
    from focoop.methods import create

    _note_held_out(config, data)
    allowed = Policy.read(policy_file(policy, keys))
    for sentence in policy_sentences(allowed) if show else ():
        out().print(f"policy: {sentence}", markup=False, soft_wrap=True)
    allowed.agree(config)
    client = read_site(keys).client if keys is not None else 0
    scenario = own_scenario(config, data, tuple(listed(classes)), client, client + 1)
    counts = scenario.split.counts()[client]
    # Of a class with fewer images than this some methods tell nothing.
    least = getattr(create(config.method.name, config.method.settings).config, "least_images", 0)
    report: dict[str, Any] = {
        "train": int(counts.sum()),
        "test": len(scenario.split.test_index[client]),
        "calibration": _calibration_images(scenario, client),
        "classes": {
            name: int(count)
            for name, count in zip(scenario.task.classes, counts, strict=True)
            if count
        },
        "least_images": least,
        "backbone": scenario.backbone.fingerprint,
        "policy": policy_sentences(allowed),
        **try_one_step(config, scenario, client).record(),
    }
    if show:
        _show_tried(report)
    return report


def _calibration_images(scenario: "Scenario", client: int) -> int:
    aside = scenario.split.calibration_index
    return len(aside[client]) if len(aside) else 0


def _show_tried(report: dict[str, Any]) -> None:
    console = out()
    aside = report["calibration"]
    kinds = f"{report['train']} training, {report['test']} test and {aside} calibration images"
    console.print(kinds, markup=False, soft_wrap=True)
    if not aside:
        text = (
            "without calibration images this site's model never answers unknown, until it is "
            "calibrated (data.calibration of the study, or focoop calibrate)"
        )
        console.print(text, markup=False, soft_wrap=True)
    for name, count in report["classes"].items():
        least = report["least_images"]
        few = f"  (fewer than {least}: their mean is not sent)" if count < least else ""
        console.print(f"  {count:6d}  {name}{few}", markup=False)
    console.print("each round would send:", markup=False)
    for name, form in report["sent"].items():
        console.print(f"  {name} ({form})", markup=False, soft_wrap=True)
    console.print("  class counts and the mean loss", markup=False)
    for name, form in report["kept"].items():
        console.print(f"stays here: {name} ({form})", markup=False, soft_wrap=True)
    steps = f"{report['steps_a_round']} steps a round of about {report['seconds_a_step']:.2g} s"
    console.print(f"{steps}; nothing was sent", markup=False)


def _note_held_out(config: "RunConfig", data: str) -> None:
    """Say which images are held out as test where there are none, and what is taken as domains."""
    from focoop.data import Source, domains_note, held_out_note

    source = Source.parse(data)
    if doubt := domains_note(source.kind, source.target):
        messages().print(f"warning: {doubt}", markup=False, soft_wrap=True)
    note = held_out_note(source.kind, source.target, config.data.test_share)
    if note:
        messages().print(f"note: {note}", markup=False, soft_wrap=True)

"""What `focoop site check` shows: what a site would do in a run, tried out at home."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.cli.screen import messages, out

if TYPE_CHECKING:
    from focoop.config import RunConfig
    from focoop.scenario import Scenario

EXACT = "class counts"


def try_study(
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

    _note_held_out(config, data)
    allowed = Policy.read(policy_file(policy, keys))
    for sentence in policy_sentences(allowed) if show else ():
        out().print(f"policy: {sentence}", markup=False, soft_wrap=True)
    allowed.agree(config)
    config = allowed.raise_least_images(config)
    client = read_site(keys).client if keys is not None else 0
    # 0: nobody has said how many; a site that was invited later is not counted.
    sites = max(config.partition.clients or config.privacy.parties, client + 1)
    scenario = own_scenario(config, data, tuple(listed(classes)), client, sites)
    counts = scenario.split.counts()[client]
    report: dict[str, Any] = {
        "train": int(counts.sum()),
        "test": len(scenario.split.test_index[client]),
        "calibration": _calibration_images(scenario, client),
        "classes": {
            name: int(count)
            for name, count in zip(scenario.task.classes, counts, strict=True)
            if count
        },
        "backbone": scenario.backbone.fingerprint,
        "policy": policy_sentences(allowed),
        "counts": _counts(config),
        **try_one_step(config, scenario, client).record(),
    }
    if report["counts"] == EXACT:  # what leaves does not stay
        report["kept"].pop("counts", None)
    if show:
        _show_trial(report, config)
    return report


def _counts(config: "RunConfig") -> str:
    """How a round's update tells how many images of each class it is of."""
    privacy = config.privacy
    if privacy.secure_sum:
        return "class counts, which the server sees summed over all sites"
    return EXACT if privacy.counts == "exact" else f"class counts: {privacy.counts}"


def _calibration_images(scenario: "Scenario", client: int) -> int:
    aside = scenario.split.calibration_index
    return len(aside[client]) if len(aside) else 0


def _show_trial(report: dict[str, Any], config: "RunConfig") -> None:
    from focoop.methods import lookup

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
    held_back = report["held_back"]
    for name, count in report["classes"].items():
        few = "  (too few: nothing of it is sent)" if name in held_back["classes"] else ""
        console.print(f"  {count:6d}  {name}{few}", markup=False)
    if held_back["reason"]:
        messages().print(f"warning: {held_back['reason']}", markup=False, soft_wrap=True)
    if not config.federation.rounds or not lookup(config.method.name).trains:
        console.print("nothing is trained and nothing is sent; the images stay here", markup=False)
        return
    masked = ", under masks: the server sees the sum of all sites alone"
    console.print(f"each round would send{masked if config.privacy.secure_sum else ''}:")
    for name, form in report["sent"].items():
        console.print(f"  {name} ({form})", markup=False, soft_wrap=True)
    console.print(f"  the mean loss and {report['counts']}", markup=False, soft_wrap=True)
    for name, form in {"images": "all of them", **report["kept"]}.items():
        console.print(f"stays here: {name} ({form})", markup=False, soft_wrap=True)
    seconds, steps = f"{report['seconds_a_step']:.2g} s", report["steps_a_round"]
    work = f"{steps} steps a round of about {seconds}"
    if not steps:
        work = f"nothing is trained: the images are measured in about {seconds}"
    console.print(f"{work}; nothing was sent", markup=False, soft_wrap=True)


def _note_held_out(config: "RunConfig", data: str) -> None:
    """Say which images are held out as test where there are none, and what is taken as domains."""
    from focoop.data import Source, domains_note, held_out_note

    source = Source.parse(data)
    if doubt := domains_note(source.kind, source.target):
        messages().print(f"warning: {doubt}", markup=False, soft_wrap=True)
    note = held_out_note(source.kind, source.target, config.data.test_share)
    if note:
        messages().print(f"note: {note}", markup=False, soft_wrap=True)

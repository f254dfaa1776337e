"""A site sends nothing of its small classes, whatever a study asks, and says so."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from typer.testing import CliRunner

from focoop.cli import app
from focoop.config.loading import load
from focoop.config.writing import to_toml
from focoop.flower import in_process
from focoop.flower.journal import events
from focoop.flower.site.connection import Reach
from focoop.flower.site.policy import Policy
from focoop.flower.site.status import read_status
from focoop.flower.site.status_words import sentences
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from tests.flower.federations import CLIENTS, simulated, state, toy_config
from tests.flower.test_policy import SAID, site_nodes
from tests.flower.test_site_status import Said, watched

HELD = ("held back", "contributes nothing")  # some of a site's classes, or all
UNEQUAL = ["partition.kind=dirichlet", "partition.alpha=0.5", "partition.shots=0"]
PLUS = ["method.name=focoop_plus", "federation.rounds=1", "federation.evaluate_every=0", *UNEQUAL]


def test_a_policy_raises_what_a_study_asks_and_lowers_nothing() -> None:
    def asked(policy: int, study: int) -> int:
        config = load(None, ["method.name=fedlda", f"method.least_images={study}"])
        raised = Policy.of({"least_images": policy}).raise_least_images(config)
        return int(getattr(raised.method.settings, "least_images"))  # noqa: B009

    assert [asked(5, 1), asked(5, 8), asked(0, 3)] == [5, 8, 3]
    trained = load(None, ["method.name=promptfl"])  # which has no such setting
    assert Policy().raise_least_images(trained) is trained


@pytest.mark.filterwarnings("ignore:focoop_plus sends nothing of a class")
@pytest.mark.parametrize("secure", ["false", "true"])
def test_a_site_leaves_its_small_classes_out_and_the_study_goes_on(
    tmp_path: Path, secure: str
) -> None:
    """The bits are those of a study in which all leave them out."""
    settings = [*PLUS, f"privacy.secure_sum={secure}"]
    wanted = toy_config(tmp_path, *settings, "method.least_images=1")
    strict = toy_config(tmp_path, *settings, "method.least_images=5")
    nodes, journal = site_nodes(tmp_path, settings), tmp_path / "journal.jsonl"
    told: dict[str, Any] = {"nodes": nodes, "classes": SAID, "journal": str(journal)}
    in_process.run(wanted, tmp_path / "run", CLIENTS, **told)
    run = RunFolder.open(tmp_path / "run")
    assert state(run) == state(simulated(strict, tmp_path / "strict"))
    assert state(run) != state(simulated(wanted, tmp_path / "all"))
    counts = make_split(wanted).counts()
    assert ((counts > 0) & (counts < 5)).any() and (counts >= 5).any()
    for k, held in enumerate(counts.tolist()):
        few = [count for count in held if 0 < count < 5]
        reasons = [
            one["reason"]
            for one in events(tmp_path / f"state{k}" / "journal.jsonl")
            if one["event"] == "held back"
        ]
        kinds = sum(count > 0 for count in held)
        expected = f"nothing is sent of {len(few)} of its {kinds} classes ({sum(few)} of "
        assert len(reasons) == bool(few) and all(expected in reason for reason in reasons)
        seen = [
            (one["event"], one["reason"])
            for one in events(journal)
            if one.get("site") == f"site {k}" and one["event"] in HELD
        ]
        shown = f"of {len(few)} of its {kinds} classes ({sum(few)} of {sum(held)} images)"
        assert len(seen) == (bool(few) and secure == "false")  # of a sum nobody can tell
        for event, reason in seen:
            assert event == HELD[len(few) == kinds] and shown in reason


def test_a_site_that_contributes_nothing_says_so_loudly(tmp_path: Path) -> None:
    settings = [*PLUS, "method.least_images=1"]
    nodes, journal = site_nodes(tmp_path, settings), tmp_path / "journal.jsonl"
    wanted = toy_config(tmp_path, *settings)
    policy = f'folders = ["{tmp_path}/setting"]\nleast_images = 1000\n'
    (tmp_path / "policy1.toml").write_text(policy)
    told: dict[str, Any] = {"nodes": nodes, "classes": SAID, "journal": str(journal)}
    in_process.run(wanted, tmp_path / "run", CLIENTS, **told)
    said = Said()
    watch = watched(tmp_path / "state1", said, Reach(""))
    watch.connected()
    (line,) = [one for one in sentences(read_status(tmp_path / "state1")) if "NOTHING" in one]
    assert line.startswith("THIS SITE CONTRIBUTES NOTHING: nothing is sent of ")
    assert "fewer than 1000 different images (least_images of its policy.toml" in line
    assert any(
        one["event"] == HELD[True] and one["site"] == "site 1" and one["round"] == 1
        for one in events(journal)
    )
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    words = ["site", "check", str(tmp_path / "run.toml"), "--classes", SAID]
    words += ["--data", nodes[1]["data"], "--policy", nodes[1]["policy"]]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "warning: THIS SITE CONTRIBUTES NOTHING" in done.stderr
    assert "(too few: nothing of it is sent)" in done.stdout
    # It trains nothing, and what it sends does not stay.
    assert "nothing is trained: the images are measured" in done.stdout
    assert "steps a round" not in done.stdout and "stays here: counts" not in done.stdout
    assert "  the mean loss and class counts\n" in done.stdout
    assert "stays here: images (all of them)" in done.stdout

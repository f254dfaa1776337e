"""Scores of a user's own, in a file: one registry for a method's settings, `--score` and tuning."""

from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

import focoop
from focoop.functional.scores import SCORES
from focoop.methods import Answering, available, lookup
from tests.plugins.own_method import QUICK
from tests.toy_command import call

SCORE = """
import focoop


@focoop.register
def widest(inputs):
    return -inputs.id_cos.max(dim=1).values
"""


def test_a_file_may_register_its_score(here: Path, setting: Path) -> None:
    (here / "widest.py").write_text(SCORE)
    run = focoop.run(setting, {"method.name": "zeroshot", **QUICK}, out="run")
    found = run.scores("far", client=0, score="./widest.py")
    assert np.allclose(found, -run.logits("far", client=0)["id"].max(1))
    (here / "two.py").write_text(SCORE + "\ndef other(inputs):\n    return inputs\n")
    with pytest.raises(focoop.ConfigError, match=r"score\(inputs\), it defines widest, other"):
        run.scores("far", client=0, score="./two.py")


def test_a_method_is_scored_by_a_file_as_evaluate_is(here: Path, setting: Path) -> None:
    (here / "widest.py").write_text(SCORE)
    settings = {"method.name": "promptfl", **QUICK}
    mine = focoop.run(setting, {**settings, "method.score": "./widest.py"}, out="mine")
    plain = focoop.run(setting, {**settings, "method.score": "mcm"}, out="plain")
    wanted = plain.evaluate(score="max_cosine").summary["ood"]
    assert mine.summary["ood"] == wanted != plain.summary["ood"]
    used = mine._folder.manifest["plugins"]
    assert [plugin["kind"] for plugin in used] == ["score"] and len(used[0]["sha256"]) == 64
    (here / "widest.py").write_text(SCORE.replace("-inputs", "inputs"))
    with pytest.raises(focoop.RunError, match="plugins"):
        focoop.open_run("mine").evaluate()


def test_one_registry_for_methods_tuning_and_evaluate() -> None:
    for name, kind in available().items():
        if not issubclass(kind, Answering):
            continue
        assert set(kind.tried_scores) <= set(SCORES), name
        assert not get_args(get_type_hints(kind.Config)["score"]), f"{name} has a list of its own"
        for score in SCORES:
            assert kind.Config(score=score).score == score
        with pytest.raises(focoop.ConfigError, match="unknown score 'max_cosin'; nearest is"):
            kind.Config(score="max_cosin")


def test_a_fault_in_a_score_is_one_line(here: Path, setting: Path) -> None:
    (here / "bad.py").write_text("def score(inputs):\n    return inputs.id_cos['x']\n")
    focoop.run(setting, {"method.name": "zeroshot", **QUICK}, out="run")
    done = call("evaluate", "run", "--score", "./bad.py")
    assert done.exit_code == 5 and "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "error:" in line]
    assert len(lines) == 1 and lines[0].startswith("error: the score ./bad.py failed in ")
    assert "bad.py, line 2: " in done.stderr.replace("\n", " ")


def test_a_score_of_the_wrong_sign_is_remarked(here: Path) -> None:
    (here / "wrong.py").write_text("def score(inputs):\n    return inputs.id_cos.amax(1)\n")
    run = focoop.run("packaged", {"method.name": "zeroshot", "method.open_share": 0.1}, out="run")
    assert run.evaluate(score="max_cosine").summary["ood"]["dtd_32px"]["auroc"] > 0.6
    with pytest.warns(UserWarning, match=r"AUROC far below 50% \(dtd_32px .*the wrong sign"):
        run.evaluate(score="./wrong.py")

    @focoop.register
    class Upside(lookup("zeroshot")):  # type: ignore[misc]
        def score(self, logits: focoop.Logits, task: focoop.Task) -> torch.Tensor:
            return logits.id.amax(dim=1)

    with pytest.warns(UserWarning, match="the wrong sign"):
        focoop.run("packaged", {"method.name": "upside", "method.open_share": 0.1}, out="upside")
    methods = "upside:open_share=0.1,zeroshot"
    told = focoop.compare("packaged", methods, seeds=1, out="grid").to_markdown()
    assert "- upside:open_share=0.1: AUROC far below 50%" in told and "- zeroshot" not in told

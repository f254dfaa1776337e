"""A researcher's way, start to end: an own method and an own score from a folder of their own, a
grid with methods of focoop, its tables, its LaTeX and its report."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import focoop
from tests.plugins.own_method import METHOD

SCORE = """
import warnings

import focoop

warnings.warn("this score is a draft")


@focoop.register
def widest(inputs):
    return -inputs.id_cos.max(dim=1).values
"""
LABELS = ["Fed-Mine", "Ours", "promptfl:score=widest", "zeroshot"]


def command(here: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `focoop` as in a terminal of 200 columns, in a folder outside the checkout."""
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "focoop", *words],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_an_own_method_and_score_go_from_their_file_to_the_paper(tmp_path: Path) -> None:
    ideas, here = tmp_path / "my ideas", tmp_path / "work"
    ideas.mkdir()
    here.mkdir()
    (ideas / "mine.py").write_text(METHOD.replace('paper = "mine"', 'name = "Fed-Mine"'))
    (ideas / "other.py").write_text(METHOD)
    (ideas / "widest.py").write_text(SCORE)
    told = command(here, "methods", str(ideas / "mine.py"), "--check").stdout
    assert told.count("  ok  ") == 6

    methods = f"{ideas}/mine.py,Ours=../my ideas/other.py,promptfl:score={ideas}/widest.py,zeroshot"
    grid = ["compare", "packaged", "--methods", methods, "--seeds", "2", "--jobs", "2"]
    done = command(here, *grid, "--set", "federation.rounds=1", "--out", "out")
    assert "warning: this score is a draft\n" in done.stderr
    assert "warnings.warn(" not in done.stderr and "UserWarning" not in done.stderr
    out = here / "out"
    assert sorted(path.name for path in (out / "packaged").iterdir()) == sorted(
        label.replace(":", "-") for label in LABELS
    )
    markdown, latex = ((out / f"packaged.{end}").read_text() for end in ("md", "tex"))
    assert markdown.strip() == done.stdout.strip()
    for label in LABELS:
        assert f"\n| {label} | " in markdown and f"\n{label} & " in latex
    assert r"\label{tab:packaged}" in latex and r"\caption{Methods on packaged: percent" in latex
    assert r"own $\uparrow$" in latex and r"fpr95 dtd\_32px $\downarrow$" in latex
    cells = json.loads((out / "results.json").read_text())["cells"]
    assert {cell["label"] for cell in cells} == set(LABELS)
    assert {cell["method"] for cell in cells} == {"Fed-Mine", "other", "promptfl", "zeroshot"}
    for text in (markdown, latex, done.stdout):
        assert ".py" not in text and "my ideas" not in text

    run = out / "packaged" / "Fed-Mine" / "seed0"
    told = command(here, "evaluate", str(run), "--score", f"{ideas}/widest.py", "--json").stdout
    wanted = focoop.open_run(run).evaluate(score="max_cosine").summary["ood"]
    auroc = json.loads(told)["summary"]["ood"]["dtd_32px"]["auroc"]
    assert auroc == pytest.approx(wanted["dtd_32px"]["auroc"], abs=1e-6)
    table = command(here, "evaluate", str(run)).stdout
    assert "Fed-Mine" in table and ".py" not in table
    listed = command(here, "runs", "out").stdout
    assert "Fed-Mine" in listed and ".py" not in listed

    command(here, "report", "out", "--out", "report.html")
    page = (here / "report.html").read_text()
    assert "<title>out: focoop report</title>" in page
    rows = set(re.findall(r'<th scope="row">([^<]*)</th>', page))
    assert {label.replace(":", "-") for label in LABELS} <= rows
    said = page.replace(re.search(r"How the runs were made.*?</details>", page, re.S)[0], "")  # type: ignore[index]
    assert "my ideas" not in said and not re.search(r"\w\.py\b", said.partition("<script")[0])

"""All LaTeX that focoop writes compiles: every item of the paper, a sweep, a comparison."""

import shutil
import subprocess
from pathlib import Path

import pytest

from focoop.experiments import parse_sweep, sweeps, tables
from focoop.paper import Item, Numbers, read_items, read_numbers
from focoop.paper.writing import latex

pytestmark = pytest.mark.slow
PACKAGES = ("booktabs.sty", "graphicx.sty")


def lacks_tex() -> str:
    """Why nothing can be compiled here; empty: it can."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return "no pdflatex: install Debian's texlive-latex-recommended"
    found = subprocess.run(
        ["kpsewhich", *PACKAGES], capture_output=True, text=True, timeout=60, check=False
    )
    lines = len(found.stdout.split())
    return "" if lines == len(PACKAGES) else f"no {' or '.join(PACKAGES)} beside pdflatex"


def numbers(item: Item) -> Numbers:
    """An item all of whose places have a number, but the last method's."""
    rows = []
    for part in (*item.parts, *item.averages):
        sweep = getattr(part, "sweep", "")
        for point in parse_sweep(sweep).values if sweep else ("",):
            for at, label in enumerate(item.methods[:-1] or item.methods):
                for column in item.columns:
                    rows.append([part.name, point, label, column, 50.0 + at, 1.25, 3, "3"])
    tree = {
        "item": item.name,
        "made_with": 'Backbone mini, seeds 0, 1. Changed: a_b=["x#y"], 5% ~ ^ {c} \\ & $.',
        "notes": [],
        "lacking": [],
        "failed": [],
        "numbers": rows,
    }
    return read_numbers(item, tree)


def compiled(folder: Path, name: str, body: str) -> None:
    """Compile a document with this body, twice as a user would, and see its pages."""
    packages = ",".join(one.removesuffix(".sty") for one in PACKAGES)
    (folder / f"{name}.tex").write_text(
        f"\\documentclass{{article}}\n\\usepackage{{{packages}}}\n\\extrafloats{{100}}\n"
        f"\\begin{{document}}\n{body}\n\\clearpage\\end{{document}}\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"],
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=False,
    )
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Undefined control sequence" not in log and "Missing" not in log
    assert (folder / f"{name}.pdf").stat().st_size > 5000


@pytest.mark.skipif(bool(lacks_tex()), reason=lacks_tex() or "all is here")
def test_every_items_latex_compiles(tmp_path: Path) -> None:
    items = read_items()
    texts = [latex(one.item, one.entries, one.remarks) for one in map(numbers, items)]
    assert len(texts) == 14 and all(r"\toprule" in text for text in texts)
    compiled(tmp_path, "items", "\n".join(f"{text}\n\\clearpage" for text in texts))


@pytest.mark.skipif(bool(lacks_tex()), reason=lacks_tex() or "all is here")
def test_the_latex_of_a_sweep_and_of_a_comparison_compiles(tmp_path: Path) -> None:
    keys = ["partition.shots", "method.open_share"]
    rows = [
        {
            "setting": "a_b",
            keys[0]: shots,
            keys[1]: "0.5",
            "method": "focoop:bos=false",
            "column": column,
            "mean": 12.5,
            "std": std,
            "runs": 2,
        }
        for shots in ("1", "2")
        for column, std in (("own", None), ("fpr95_oodpos dtd", 0.5))
    ]
    row = {"own": tables.Stat(12.5, 0.25, 2), "fpr95 dtd_32px": tables.Stat(3.0, None, 1)}
    comparison = tables.latex([("focoop:bos=false", row, "2"), ("a#b", {}, "0")], "50% & more_x")
    assert r"\label{tab:50-more_x}" in comparison
    compiled(tmp_path, "sweep", sweeps.latex(rows, keys) + comparison)

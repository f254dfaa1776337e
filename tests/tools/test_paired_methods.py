"""One method against another: the page's table is that of the committed runs."""

import math
import statistics

from tools import paired_methods


def test_the_page_has_the_table_of_the_committed_runs() -> None:
    cells = paired_methods.read_rows(paired_methods.CELLS)
    page = paired_methods.ROOT / "docs" / "results" / "focoop" / "alone.md"
    found = paired_methods.table(cells, "focoop", "local_only")
    assert found in page.read_text(encoding="utf-8")
    # What the page says in words.
    assert "| all | higher in 6 of 25 | higher in 21 of 25 |" in found
    runs = {(c["setting"], c["method"], c["seed"]): c["own"] for c in cells}
    settings = {s for s, m, _ in runs if m == "focoop"}
    steps = [runs[s, "focoop", n] - runs[s, "local_only", n] for s in settings for n in range(3)]
    assert f"{-statistics.mean(steps):.1f}" == "5.1"


def test_differences_are_in_pairs_and_bold_where_they_are_sure() -> None:
    cells = [
        {"setting": "s", "method": method, "seed": seed, "own": own, "auroc a": own, "auroc b": 0.0}
        for method, values in (("x", [3.0, 5.0, 7.0]), ("y", [1.0, 2.0, 3.0, 9.0]))
        for seed, own in enumerate(values)
    ]
    steps = [2.0, 3.0, 4.0]
    width = 4.303 * statistics.stdev(steps) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    own, halves = f"**+3.0 ± {width:.1f}**", f"**+1.5 ± {width / 2:.1f}**"
    lines = paired_methods.table(cells, "x", "y").splitlines()
    assert lines[2] == f"| `s` | {own} |  |  | {halves} |"
    assert lines[3].startswith("| all | higher in 1 of 1 | higher in 0 of 0 |")

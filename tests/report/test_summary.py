"""The first screen of a report: who is best, by how much, and what a paired test says of it."""

from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from focoop.config import RunConfig
from focoop.report.records import Collection, RunRecord
from focoop.report.sections import results_tables
from focoop.report.summary import summary, winners


def run(label: str, seed: int, own: float, fpr95: float, status: str = "finished") -> RunRecord:
    """A finished run with one accuracy and two OOD sets."""
    config = RunConfig(seed=seed)
    folder: Any = SimpleNamespace(status=status, config=config)
    ood = {"a": {"fpr95": fpr95, "auroc": 0.9}, "b": {"fpr95": fpr95 + 0.2, "auroc": 0.7}}
    return RunRecord(0, folder, "toy", label, [{"accuracy_own": own, "ood": ood}])


ROWS = {
    "near": [run("near", seed, own, 0.3) for seed, own in enumerate((0.80, 0.84, 0.82))],
    "best": [run("best", seed, own, 0.1) for seed, own in enumerate((0.81, 0.82, 0.84))],
    "far": [run("far", seed, own, 0.2) for seed, own in enumerate((0.50, 0.51, 0.54))],
}


def test_the_best_its_lead_and_who_is_not_told_apart() -> None:
    own, auroc, fpr95 = winners(ROWS)
    assert (own.metric, own.label, own.second) == ("own", "best", "near")
    assert own.mean == pytest.approx(100 * (0.81 + 0.82 + 0.84) / 3)
    assert own.lead is not None and own.lead.mean == pytest.approx(100 * 0.01 / 3)
    expected = stats.ttest_rel([0.81, 0.82, 0.84], [0.80, 0.84, 0.82]).pvalue
    assert own.lead.p == pytest.approx(expected, rel=1e-6)
    assert own.alike == ("near",) and not own.clear
    assert fpr95.label == "best" and fpr95.mean == pytest.approx(20), "the mean of both OOD sets"
    assert fpr95.lead is not None and fpr95.lead.mean == pytest.approx(10), "less is better"
    assert not fpr95.tested, "equal differences in all seeds: a test says nothing"
    assert auroc.label in ROWS and auroc.lead is not None and auroc.lead.mean == 0


def test_p_values_are_corrected_for_the_number_of_tests() -> None:
    best, near = (0.90, 0.91, 0.92), (0.88, 0.88, 0.905)
    p = stats.ttest_rel(best, near).pvalue
    assert 0.05 / 2 < p < 0.05
    seeds = {"best": best, "near": near, "also": near}
    rows = {
        name: [run(name, s, own, 0.1) for s, own in enumerate(of)] for name, of in seeds.items()
    }
    two = {name: rows[name] for name in ("best", "near")}
    assert winners(two)[0].clear, "one test alone"
    own = winners(rows)[0]
    assert own.lead is not None and own.lead.p == pytest.approx(2 * p)
    assert set(own.alike) == {"near", "also"}
    text = summary(Collection([one for of in rows.values() for one in of], {}), {"toy": rows})
    assert "No win is clear" in text and "corrected by Holm's method" in text
    others = results_tables(two, "s0").count("°</abbr>")  # the same in all methods
    assert results_tables(rows, "s0").count("°</abbr>") == 2 * others + 2


def test_what_the_first_screen_says() -> None:
    clear = {"far": ROWS["far"], "best": ROWS["best"]}
    records = [record for of in clear.values() for record in of]
    open_one = run("late", 0, 0.99, 0.0, "killed")
    rows = {**clear, "late (killed)": [open_one]}
    text = summary(Collection([*records, open_one], {}), {"toy & co": rows})
    assert "7 runs: 3 methods on 1 setting, seeds 0, 1, 2; backbone mini." in text
    assert "1 is not finished" in text
    assert '<b><a href="#s0-runs-1">best 82.3</a></b>, 30.7 ± ' in text, "it leads to its runs"
    assert "(p = 0.00" in text, "the unfinished is no rival"
    assert "(1 clearly)" in text and "toy &amp; co" in text
    assert "the same in every seed: no test" in text
    alone = summary(Collection(ROWS["far"], {}), {"toy": {"far": ROWS["far"]}})
    assert "nothing to compare" in alone and "Best in" not in alone
    single = {label: of[:1] for label, of in ROWS.items()}
    text = summary(Collection([of[0] for of in single.values()], {}), {"toy": single})
    assert "1.0 ahead of near (one seed: no test)" in text and "No win is clear" in text

"""Tables of results: means, the best of a column, widths."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.experiments import tables
from tests.toy_setting import summary

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=5)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_means_and_deviations_are_numpys(rows: list[list[float]]) -> None:
    for values in rows:
        found = tables.over_seeds([summary(value) for value in values])
        assert "corrupted" not in found  # not measured
        for name, sign, factor in (("own", 1, 1.0), ("all", 1, 0.5), ("alarm", -1, 1.0)):
            array = 100 * (np.array(values) * factor if sign > 0 else 1 - np.array(values))
            assert found[name].mean == pytest.approx(array.mean(), abs=1e-9)
            if len(values) == 1:
                assert found[name].spread is None
            else:
                assert found[name].spread == pytest.approx(array.std(ddof=1), abs=1e-9)


def test_best_of_each_column_is_bold() -> None:
    rows = [
        (label, tables.over_seeds([summary(own, fpr)]), "1")
        for label, own, fpr in (("a", 0.5, 0.30001), ("b", 0.7, 0.4), ("c", 0.2, 0.3))
    ]
    text = tables.markdown(rows)
    bold = {
        (line.split(" | ")[0].strip("| "), cell.strip("*"))
        for line in text.splitlines()
        for cell in re.findall(r"\*\*[^*]+\*\*", line)
    }
    # Larger accuracy, smaller alarm and fpr95; what is equal as shown is bold together.
    assert bold == {
        ("b", "70.0"),
        ("b", "35.0"),
        ("b", "30.0"),
        ("a", "30.0"),
        ("c", "30.0"),
        *((label, shown) for label in "abc" for shown in ("40.0", "90.0")),
    }
    assert "**" not in tables.markdown(rows[:1])  # nothing to compare with


def test_tables_stay_narrow_and_ordered() -> None:
    line = summary(0.5)
    line["ood"] = dict.fromkeys(("p", "q", "r"), line["ood"]["dtd"])
    text = tables.markdown([("z", tables.over_seeds([line]), "1"), ("a", {}, "0 of 1")])
    parts = [part.splitlines() for part in text.split("\n\n")]
    assert [len(part[0].split(" | ")) for part in parts] == [5, 7, 4]
    assert all([row.split(" | ")[0] for row in part[2:]] == ["| z", "| a"] for part in parts)
    assert "| a | - | - | - | 0 of 1 |" in text

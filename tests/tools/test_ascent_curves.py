"""The tool that prints how much each step of the ascent gains."""

import re

import pytest

from focoop.methods._bos import Ascent
from tests.methods.test_ascent import a_side
from tools import ascent_curves


def test_the_curve_of_steps_that_each_raise_the_objective_rises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ascent_curves.show("ood", a_side(1, 10.0, 1.0, ids=False), Ascent(0.3, 1.0, 4, 0.1), 1e-3)
    told = capsys.readouterr().out
    gains = [float(value) for value in re.findall(r"\d+: ([+-][\d.]+)", told)]
    assert len(gains) == 6 and gains[0] == 0.0
    assert gains == sorted(gains) and gains[-1] > 0.0
    assert "rows that moved 4" in told

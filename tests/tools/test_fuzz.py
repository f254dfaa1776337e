"""No traceback and no hang for any setting, file or command line that the schema suggests."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given

from tools import fuzz
from tools.fuzz import Case, Ground

CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
# Where a case fails it is not made smaller: the fault's own place says enough.
HOW = {"deadline": None, "suppress_health_check": CHECKS, "phases": [Phase.generate]}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("fuzz")
    patch.setenv("FOCOOP_CACHE", str(folder / "cache"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    yield Ground(folder)
    patch.undo()


def hold(ground: Ground, case: Case) -> None:
    outcome = ground.attempt(case)
    assert outcome.how != "fault", f"{case!r:.2000}\n{outcome.report}"


@hypothesis.settings(max_examples=150, **HOW)
@given(case=fuzz.settings())
def test_settings_are_told_or_planned(ground: Ground, case: Case) -> None:
    hold(ground, case)


@hypothesis.settings(max_examples=60, **HOW)
@given(case=fuzz.files())
def test_files_are_told_or_read(ground: Ground, case: Case) -> None:
    hold(ground, case)


@pytest.mark.slow
@hypothesis.settings(max_examples=7000, **HOW)
@given(case=fuzz.settings())
def test_thousands_of_settings(ground: Ground, case: Case) -> None:
    hold(ground, case)


@pytest.mark.slow
@hypothesis.settings(max_examples=2000, **HOW)
@given(case=fuzz.files())
def test_thousands_of_files(ground: Ground, case: Case) -> None:
    hold(ground, case)


@pytest.mark.slow
@hypothesis.settings(max_examples=1500, **HOW)
@given(case=fuzz.commands())
def test_thousands_of_command_lines(ground: Ground, case: Case) -> None:
    hold(ground, case)


def test_a_traceback_and_a_hang_are_faults(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    def endless(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz, "from_dict", broken)
    outcome = ground.attempt(Case("settings"))
    assert outcome.how == "fault" and "ZeroDivisionError" in outcome.report
    monkeypatch.setattr(fuzz, "PATIENCE", 0.2)
    monkeypatch.setattr(fuzz, "from_dict", endless)
    assert "Hung" in ground.attempt(Case("settings")).report


def test_the_tool_tells_what_it_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path))
    assert fuzz.main(["--seconds", "0.01", "--seed", "3", "--kinds", "files"]) == 0
    assert '"kinds of fault": 0' in capsys.readouterr().out

"""No traceback and no hang for any setting, file or command line that the schema suggests."""

import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given

from tools import fuzz, fuzz_cases
from tools.fuzz import Ground
from tools.fuzz_cases import Case
from tools.promises import MARKS, Promise, write_promise

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


@hypothesis.settings(max_examples=80, **HOW)
@given(case=fuzz_cases.settings())
def test_settings_are_told_or_planned(ground: Ground, case: Case) -> None:
    hold(ground, case)


@hypothesis.settings(max_examples=60, **HOW)
@given(case=fuzz_cases.files())
def test_files_are_told_or_read(ground: Ground, case: Case) -> None:
    hold(ground, case)


@pytest.mark.slow
@hypothesis.settings(max_examples=10_000, **HOW)
@given(case=fuzz_cases.settings())
def test_thousands_of_settings(ground: Ground, case: Case) -> None:
    hold(ground, case)


@pytest.mark.slow
@hypothesis.settings(max_examples=2000, **HOW)
@given(case=fuzz_cases.files())
def test_thousands_of_files(ground: Ground, case: Case) -> None:
    hold(ground, case)


@pytest.mark.slow
@hypothesis.settings(max_examples=1500, **HOW)
@given(case=fuzz_cases.commands())
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
    monkeypatch.setattr(fuzz, "PATIENCE", 0.1)
    monkeypatch.setattr(fuzz, "from_dict", endless)
    assert "Hung" in ground.attempt(Case("settings")).report
    with pytest.raises(fuzz.Hung), fuzz.limited(100.0, wait=0.05):
        time.sleep(5)


def test_the_tool_tells_what_it_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path))
    assert fuzz.main(["--seconds", "0.01", "--seed", "3", "--kinds", "files"]) == 0
    assert '"kinds of fault": 0' in capsys.readouterr().out


def test_counts_are_written_into_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path))
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{MARKS[0]}\n{MARKS[1]}\n\nafter\n")
    words = ["--kinds", "files", "--seed", "3", "--docs", str(page)]
    for cases in ("4", "5"):  # the later row takes the place of the earlier one
        assert fuzz.main([*words, "--cases", cases]) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    rows = [line for line in text.splitlines() if line.startswith("| No file")]
    assert len(rows) == 1 and " | 5 | " in rows[0] and "--cases 5 --seed 3" in rows[0]
    (tmp_path / "empty.md").write_text("nothing")
    with pytest.raises(ValueError, match="has no"):
        write_promise(tmp_path / "empty.md", Promise("a", "b", 1, "c", 0, "d"))

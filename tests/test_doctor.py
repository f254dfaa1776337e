"""The doctor: finds what is there, names what is missing, never stumbles itself."""

import builtins
import os
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from focoop import doctor
from focoop.data import demo
from focoop.errors import DataError


def by_topic(checks: Any) -> dict[str, doctor.Check]:
    return {check.topic: check for check in checks}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


def test_a_complete_installation_has_no_failure() -> None:
    found = by_topic(doctor.examine())
    assert [check for check in found.values() if check.state == doctor.FAIL] == []
    assert found["backbone mini"].state == doctor.OK
    assert "cifar100" in found["demo data"].found
    assert all(check.advice for check in found.values() if check.state == doctor.NOTE)


def test_absent_packages_come_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name in ("open_clip", "matplotlib", "PIL") else real(name, *rest)

    monkeypatch.setattr(util, "find_spec", without)
    found = by_topic(doctor.packages())
    assert (found["pillow"].state, found["pillow"].advice) == ("fail", "pip install pillow")
    assert found["matplotlib"].state == "note" and "focoop[plot]" in found["matplotlib"].advice
    assert doctor.backbone_openclip().advice == "pip install 'focoop[openclip]'"


def test_a_damaged_demo_pack_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "verify", lambda: ["demo file x is damaged"])
    assert doctor.demo_pack().state == doctor.FAIL

    def missing() -> list[str]:
        raise DataError("the demo pack is missing")

    monkeypatch.setattr(demo, "verify", missing)
    check = doctor.guarded(doctor.demo_pack)
    assert (check.state, check.found) == (doctor.FAIL, "the demo pack is missing")


def test_an_import_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise ImportError("libfoo.so is missing")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    check = doctor.guarded(doctor.device)
    assert check.state == doctor.FAIL and "libfoo.so" in check.found


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert doctor.cache().state == doctor.FAIL
    assert "FOCOOP_CACHE" in doctor.cache().advice
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "NEEDED_SPACE", 2**70)
    assert doctor.runs_folder().state == doctor.NOTE


def test_the_cache_is_measured(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "x").write_bytes(b"0" * 3 * 2**20)
    assert "3 MiB" in doctor.cache().found

"""What a script sees of a command that fails: the exit code, and with --json a document."""

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from focoop import errors
from focoop.cli import failure
from focoop.cli.failure import EXIT_CODES
from focoop.cli.site import class_names
from focoop.errors import ConfigError
from tests.toy_command import FAST, ROOT, call


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["run", "--set", "federation.roundz=1"], "ConfigError", 2),
        (["run", "--set", "data.id=demo:cifar10"], "DataError", 3),
        (["run", "--set", "backbone.name=maxi"], "BackboneError", 4),
        (["evaluate", "nowhere"], "RunError", 6),
        (["evaluate"], "MissingParameter", 2),
        (["config", "--nonsense"], "NoSuchOption", 2),
        (["encode", "folder:nowhere"], "DataError", 3),
        (["data", "show", "--set", "partition.kind=dirichle"], "ConfigError", 2),
        (["compare", "absent.toml", "--methods", "focoop"], "ConfigError", 2),
        (["tune", "absent.toml", "--methods", "all"], "ConfigError", 2),
        (["demo", "--set", "seed=x"], "ConfigError", 2),
        (["negatives", "demo:nothing"], "DataError", 3),
        (["doctor", "absent.toml"], "ConfigError", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_json_tells_the_error_on_standard_output(
    arguments: list[str], kind: str, code: int
) -> None:
    result = call(*arguments, "--json")
    assert result.exit_code == code, result.stderr
    document = json.loads(result.stdout)
    assert set(document) == {"error"}
    assert document["error"]["kind"] == kind and document["error"]["exit_code"] == code
    assert document["error"]["message"] and "Traceback" not in result.stderr
    # The message people read says the same; a usage error is drawn in a box there.
    first = document["error"]["message"].split()[0]
    assert first in result.stderr
    assert call(*arguments).stdout == ""


def test_an_interrupt_and_an_unforeseen_error_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise stop

    monkeypatch.setattr("focoop.cli.run.train", stopped)
    stop: BaseException = KeyboardInterrupt()
    result = call("run", *FAST, "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["kind"]) == (130, "Interrupted")
    stop = ZeroDivisionError("by zero")
    result = call("run", *FAST, "--json")
    assert isinstance(result.exception, ZeroDivisionError)
    told = json.loads(result.stdout)["error"]
    assert told == {"kind": "ZeroDivisionError", "message": "by zero", "exit_code": 1}


def test_every_error_class_has_its_own_documented_exit_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = [kind.exit_code for kind in kinds if issubclass(kind, errors.FocoopError)]
    assert len(set(codes)) == len(codes) and set(codes) <= set(EXIT_CODES)
    assert failure.exit_code(errors.MissingExtra("x")) == 8
    documented = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for code, what in EXIT_CODES.items():
        assert f"| {code} | {what} |" in documented
    assert "8 an optional package is missing" in " ".join(call("--help").stdout.split())


def test_missing_extras_have_one_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] in ("matplotlib", "open_clip", "flwr"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "focoop.clip.openclip", raising=False)
    for arguments, told in (
        (["data", "show", "--plot", str(tmp_path / "p.png")], "focoop[plot]"),
        (["run", *FAST, "--set", "backbone.name=openclip:ViT-B-16:openai"], "focoop[openclip]"),
        (["run", *FAST, "--set", "data.id=hf:beans"], "pip install datasets"),
        (["keys", str(tmp_path / "keys"), "--site", "a", "--host", "h"], "focoop[flower]"),
    ):
        result = call(*arguments)
        assert result.exit_code == 8, (arguments, result.stderr)
        assert told in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("strict", [True, False])
def test_images_that_only_lack_a_package_have_that_exit_code_too(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "pydicom", None)
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            place = tmp_path / "images" / split / name / "x.dcm"
            place.parent.mkdir(parents=True)
            place.write_bytes(bytes(128) + b"DICM")
    spec = f"folder:{tmp_path / 'images'}"
    result = call(
        "run", *FAST, "--set", f"data.id={spec}", "--set", f"data.strict={strict}".lower()
    )
    assert result.exit_code == 8, result.stderr
    assert "focoop[formats]" in " ".join(result.stderr.split())


def test_a_command_line_without_typer_has_that_exit_code_too() -> None:
    script = "import sys; sys.modules['typer'] = None; from focoop.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 8 and "pip install typer rich" in done.stderr


@pytest.mark.parametrize("command", ["run", "config", "compare", "tune", "encode", "negatives"])
def test_weights_are_the_same_option_of_every_command(command: str) -> None:
    told = " ".join(call(command, "--help").stdout.split())
    assert "--weights" in told and "backbone.weights" in told


def test_weights_become_the_setting(tmp_path: Path) -> None:
    shown = call("config", "--weights", "a b.pt", "--json")
    assert json.loads(shown.stdout)["backbone"]["weights"] == "a b.pt"


def test_a_message_that_quotes_a_whole_file_is_cut_in_its_middle() -> None:
    text = str(errors.DataError("begins " + "x" * 100_000 + " ends"))
    assert len(text) < 5000 and text.startswith("begins x") and text.endswith("x ends")
    assert "characters left out" in text and str(errors.DataError("short")) == "short"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("classes.txt", "no file classes.txt"),
        ("classes.tx", "no file"),
        ("a/b", "no file a/b"),
        ("cat, dog", "with ;"),
    ],
)
def test_classes_of_a_federation_are_neither_a_missing_file_nor_one_name(
    given: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        class_names(given)
    assert class_names("cat; dog, wild") == "cat; dog, wild"
    assert class_names("cat") == "cat"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tune", "packaged", "--methods=promptfl", "--trials=3"], "write --budget"),
        (["tune", "packaged", "--methods=promptfl", "--seeds=3"], "--seed 4"),
        (["compare", "packaged", "--methods=promptfl", "--seed=3"], "write --seeds"),
        (["run", "packaged", "--seed=3"], "--set seed=4"),
        (["runs", "nosuch"], "there is no folder nosuch"),
    ],
)
def test_what_is_meant_is_said_in_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    assert done.exit_code in (2, 6) and done.stderr.startswith("error: ")
    assert told in done.stderr and "--track" not in done.stderr
    assert call("runs").exit_code == 0, "no run was made here yet"

"""Tab completion: the names that exist, quickly, in the words that each shell wants."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focoop.cli import app, completion, main, settings_outline
from focoop.config import files, loading, schema, writing
from focoop.data import registry
from focoop.features import demo
from focoop.fields import fields_of
from focoop.methods import available

Offers = Callable[[str], list[str]]
BREAKS = ("=", ":")


def bash_words(line: str) -> list[str]:
    """The words of a line as bash parts them."""
    for sign in BREAKS:
        line = line.replace(sign, f" {sign} ")
    return line.split(" ") if line.endswith(" ") and line[-2] not in BREAKS else line.split()


@pytest.fixture
def bash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offers:
    """A function that says what bash is offered at the end of a line."""

    def ask(line: str) -> list[str]:
        words = bash_words(line)
        monkeypatch.setenv(completion.VARIABLE, "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setattr(sys, "argv", ["focoop"])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets it
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out.split()

    return ask


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("method", available())
def test_the_outline_is_the_schema(method: str) -> None:
    resolved = loading.from_dict({"method": {"name": method}})
    told = settings_outline.settings(method)
    assert set(told) == {key for key, _, _ in writing.describe(resolved)}
    holders = {name: getattr(resolved, name) for name in writing.to_dict(resolved)}
    holders["method"] = resolved.method.settings
    for section, holder in holders.items():
        if not hasattr(holder, "__dataclass_fields__"):
            continue
        for one, kind in fields_of(type(holder)):
            found = told[f"{section}.{one.name}"]
            literal = getattr(kind, "__args__", ()) if "Literal" in str(kind) else ()
            wanted = one.metadata.get("choices", literal)
            assert found.choices == (("true", "false") if kind is bool else tuple(wanted))
            assert found.default in (one.default, None)
            assert found.doc == one.metadata["doc"]


def test_names_are_those_of_the_registries() -> None:
    assert settings_outline.methods() == list(available())
    assert settings_outline.datasets() == list(registry.available())
    assert completion._demo() == sorted(f"demo:{name}" for name in demo.names())
    assert completion.config_names() == files.shipped_names()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("focoop run --set federation.rou", ["federation.rounds=", "federation.rounds=25"]),
        ("focoop run --set partition.kind=p", ["pathological"]),
        ("focoop run --set=partition.kind=p", ["pathological"]),
        ("focoop run --set method.name=promptf", ["promptfl", "promptfolio"]),
        ("focoop run --set data.id=demo:ci", ["cifar100"]),
        ("focoop run --set data.id=stanf", ["stanford_cars"]),
        ("focoop run --set data.fetch=", ["true", "false"]),
        ("focoop run --set method.name=fedpgp --set method.ra", ["method.rank=", "method.rank=4"]),
        ("focoop run demo/promptfl --set method.tra", []),
        ("focoop run --set method.transport_ru", ["method.transport_rule="]),
        ("focoop run demo/pro", ["demo/promptfl"]),
        ("focoop run min", ["mine.toml"]),
        ("focoop compare settings/dt", ["settings/dtd", "settings/dtd-patches"]),
        ("focoop compare --methods zeroshot,focoop", ["zeroshot,focoop", "zeroshot,focoop_plus"]),
        ("focoop tune --methods a", ["all"]),
        ("focoop data fetch oxf", ["oxford_pets"]),
        ("focoop data check fol", ["folder:", "folder:images/", "folder:runs/"]),
        ("focoop encode folder:images/", ["images/cat/"]),
        ("focoop evaluate ru", ["runs/one/focoop"]),
        ("focoop evaluate ", ["runs/one/focoop"]),
        ("focoop demo --device cu", ["cuda"]),
        ("focoop ev", ["evaluate"]),
        ("focoop methods ./mi", ["./mine.py"]),
        ("focoop run --set method.name=./mi", ["./mine.py"]),
        ("focoop run --set data.id=./mi", ["./mine.py"]),
        ("focoop compare --methods promptfl,./mi", ["promptfl,./mine.py"]),
        ("focoop evaluate runs/one/focoop --score ./mi", ["./mine.py"]),
        ("focoop methods mi", []),
    ],
)
def test_bash_is_offered(line: str, offered: list[str], bash: Offers) -> None:
    Path("mine.toml").touch()
    Path("mine.py").touch()
    Path("images/cat").mkdir(parents=True)
    run = Path("runs/one/focoop")
    run.mkdir(parents=True)
    (run / "manifest.json").touch()
    found = bash(line)
    assert found[: len(offered)] == offered
    assert len(found) == len(offered) or line.endswith("transport_ru")


def test_several_keys_come_before_any_value(bash: Offers) -> None:
    found = bash("focoop run --set federation.")
    keys = [key for key, _, _ in writing.describe(schema.RunConfig())]
    assert found == [f"{key}=" for key in keys if key.startswith("federation.")]


def test_other_shells_get_whole_words() -> None:
    asked = {
        completion.VARIABLE: "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "focoop run --set data.id=sv",
    }
    shown = CliRunner().invoke(app, [], env=asked, prog_name="focoop").stdout
    assert '"data.id=svhn"' in shown


def test_a_completion_needs_neither_torch_nor_numpy() -> None:
    script = (
        "import sys\n"
        "from focoop.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'flwr') if name in sys.modules])\n"
    )
    asked = {
        completion.VARIABLE: "complete_bash",
        "COMP_WORDS": "focoop run --set method.name",
        "COMP_CWORD": "3",
    }
    command = "import sys; sys.argv = ['focoop']\n" + script
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert "method.name=focoop" in lines, done.stderr
    assert lines[-1] == "[]"


def test_completion_can_be_installed() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "--install-completion" in shown

"""Own word lists, and the command that shows what is mined."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focoop.cli import app
from focoop.clip.base import Backbone
from focoop.config.loading import load
from focoop.config.schema import NegativesConfig
from focoop.errors import ConfigError
from focoop.scenario.negatives import rank
from focoop.scenario.task import make_task, mine_negatives
from focoop.scenario.wordnet import Candidates, read_words
from tests.features.test_encoding import plant_images
from tests.helpers import toy_backbone

LIST = """\
oboe
# a line of its own
ice_cream   # and one behind a word
  pitch   pipe

[Adjectives]
loud
old
[nouns]
oboe
bee
"""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text(LIST, encoding="utf-8-sig")  # as some editors write it
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["negatives", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_word_list_is_read(words: Path) -> None:
    assert read_words(words) == Candidates.of(
        ["bee", "ice cream", "oboe", "pitch pipe"], ["loud", "old"]
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"# nothing\n[nouns]\n", "is empty"),
        (b"horn\n[verbs]\nrun\n", r"line 2: \[verbs\]"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (None, "No such file"),
    ],
)
def test_bad_word_lists_are_explained(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "list.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as caught:
        read_words(path)
    assert str(path) in str(caught.value)


def test_shares_are_checked() -> None:
    assert NegativesConfig().adjective_share == -1
    assert NegativesConfig(adjective_share=0).adjective_share == 0.0
    for share in (-0.5, 1.5, -2.0):
        with pytest.raises(ConfigError, match="adjective_share"):
            NegativesConfig(adjective_share=share)


def test_a_run_mines_from_the_settings(words: Path, tmp_path: Path) -> None:
    def settings(*more: str) -> list[str]:
        return [f"negatives.words={words}", "negatives.count=4", *more]

    classes = ("ant", "bee", "cat")
    toy = toy_backbone()
    config = load(None, settings("negatives.adjective_share=0.5", "negatives.quantile=0.5"))
    found = mine_negatives(config, toy, classes, tmp_path)
    ranking = rank(
        toy, classes, quantile=0.5, candidates=read_words(words), cache_dir=tmp_path / "other"
    )
    assert found.words == ranking.adjectives.words[:2] + ranking.nouns.words[:2]
    assert "bee" not in ranking.nouns.words and ranking.nouns.total == 3  # an ID name
    task = make_task(config, toy, classes, needs_ood=True, cache_dir=tmp_path)
    assert task.ood_names is not None and task.ood_names.vocabulary == found.words
    whole = mine_negatives(load(None, settings()), toy, classes, tmp_path)
    assert whole.kinds.count("adjective") == 4 * 2 // 5  # as among the candidates


def test_the_command_shows_words_and_distances(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mini: Backbone
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    root = plant_images(tmp_path / "images", per_class=1)
    chosen = ["--set", f"negatives.words={words}", "--set", "negatives.count=5"]
    code, stdout, _ = run(f"folder:{root}", *chosen, "--json")
    assert code == 0
    found = json.loads(stdout)
    assert found["classes"] == ["ant", "bee", "cat"] and found["backbone"] == "mini"
    shown = [(row["kind"], row["word"]) for row in found["negatives"]]
    assert [kind for kind, _ in shown] == ["adjective"] * 2 + ["noun"] * 3
    # Each distance again, from the texts alone.
    names = mini.encode_texts([f"The nice {name}." for name in found["classes"]])
    for row in found["negatives"]:
        template = "This is a {} photo." if row["kind"] == "adjective" else "The nice {}."
        cosines = (names @ mini.encode_texts([template.format(row["word"])])[0]).sort().values
        near = float(cosines[1] + (0.95 * 2 - 1) * (cosines[2] - cosines[1]))
        assert row["distance"] == pytest.approx(-near, abs=1e-3)
    code, stdout, _ = run(f"folder:{root}", *chosen)
    assert code == 0 and "5 words far from 3 classes" in stdout
    rows = [line.split("  ") for line in stdout.splitlines()[3:] if line.strip()]
    told = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert told == [
        [str(slot), row["word"], row["kind"], f"{row['distance']:.4f}"]
        for slot, row in enumerate(found["negatives"])
    ]
    code, stdout, _ = run(f"folder:{root}", *chosen, "--set", 'data.drop_classes=["bee"]')
    assert code == 0 and "far from 2 classes" in stdout and " bee " in stdout  # a word like any
    assert not (tmp_path / "cache" / "features").exists()  # no image was encoded


def test_the_packaged_ranking_needs_no_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path))
    code, stdout, _ = run("demo:cifar100", "--set", "negatives.count=100", "--json")
    assert code == 0 and len(json.loads(stdout)["negatives"]) == 100
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_mined_is_explained(words: Path) -> None:
    code, _, stderr = run("demo:cifar1")
    assert code == 3 and "nearest is 'cifar100'" in stderr
    code, _, stderr = run("demo:cifar100", "--set", "negatives.words=nowhere.txt")
    assert code == 2 and "nowhere.txt" in stderr
    code, _, stderr = run("demo:cifar100", "--set", f"negatives.words={words}")
    assert code == 2 and "ask for fewer negatives" in stderr

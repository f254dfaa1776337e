"""Mined words are remembered for exactly what they depend on."""

from pathlib import Path

import pytest

from focoop.config.schema import NegativesConfig
from focoop.scenario.negatives_cache import remembered


def test_words_are_mined_once_for_what_they_depend_on(tmp_path: Path) -> None:
    asked: list[int] = []
    file = tmp_path / "words.txt"
    file.write_text("chalk\n")

    def words(count: int = 2, classes: tuple[str, ...] = ("a", "b"), tower: str = "t") -> object:
        settings = NegativesConfig(count=count, words=str(file))

        def mine() -> list[str]:
            asked.append(count)
            return [f"word {len(asked)}"] * count

        return remembered(settings, tower, classes, mine, tmp_path / "cache")

    first = words()
    assert words() == words(classes=("b", "a")) == first == ("word 1",) * 2 and len(asked) == 1
    for other in (words(count=3), words(classes=("a",)), words(tower="u")):
        assert other != first
    assert len(asked) == 4
    file.write_text("slate\n")
    assert words() != first and len(asked) == 5
    there = sorted((tmp_path / "cache").iterdir())
    whole = [kept.read_bytes() for kept in there]
    for number, content in enumerate((lambda raw: raw.replace(b"word", b"worm"), lambda raw: b"[")):
        for kept, raw in zip(there, whole, strict=True):
            kept.write_bytes(content(raw))
        with pytest.warns(UserWarning, match=r"words-.*\.json .*chosen again"):
            assert words() != first and len(asked) == 6 + number
    for kept, raw in zip(there, whole[1:] + whole[:1], strict=True):
        kept.write_bytes(raw)  # words of another task
    with pytest.warns(UserWarning, match="chosen again"):
        assert words() == ("word 8",) * 2


def test_a_list_that_is_not_there_is_the_miners_to_refuse(tmp_path: Path) -> None:
    settings = NegativesConfig(words=str(tmp_path / "none"))

    def mine() -> list[str]:
        raise KeyError("no list")

    with pytest.raises(KeyError, match="no list"):
        remembered(settings, "t", ("a",), mine, tmp_path / "cache")

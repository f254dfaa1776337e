import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from focoop.clip.base import Backbone
from focoop.errors import ConfigError
from focoop.scenario import negatives
from focoop.scenario.negatives import Candidates, Query, mine, rank
from focoop.scenario.wordnet import forms
from tests.helpers import toy_backbone

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ["maple_tree", "Bus", "couch", "mouse", "lawn_mower", "child"]
NOUNS = [f"thing {i}" for i in range(60)] + ["buses", "Mice", "lawnmower", "bush", "sofa"]
ADJECTIVES = [f"kind {i}" for i in range(15)] + ["bush", "loud"]
SYNSETS = [("sofa", "couch", "thing 7"), ("loud", "noisy"), ("thing 9", "maple trees")]
WORDS = Candidates.of(NOUNS, ADJECTIVES, SYNSETS)


def slow_distance(backbone: Backbone, text: str, others: np.ndarray, q: float) -> float:
    """Quantile by sorting and interpolating by hand, in float64."""
    word = backbone.encode_texts([text])[0].double().numpy()
    cosines = [sum(a * b for a, b in zip(word, other, strict=True)) for other in others]
    cosines.sort()
    place = q * (len(cosines) - 1)
    low = int(place)
    high = min(low + 1, len(cosines) - 1)
    return -(cosines[low] + (place - low) * (cosines[high] - cosines[low]))


@pytest.mark.parametrize("q", [0.0, 0.95, 1.0])
def test_ranking_equals_slow_loops(tmp_path: Path, q: float) -> None:
    backbone = toy_backbone()
    ranking = rank(backbone, CLASSES, quantile=q, candidates=WORDS, cache_dir=tmp_path)
    names = [f"The nice {name.replace('_', ' ')}." for name in CLASSES]
    others = backbone.encode_texts(names).double().numpy()
    for ranked, template in (
        (ranking.nouns, "The nice {}."),
        (ranking.adjectives, "This is a {} photo."),
    ):
        slow = [slow_distance(backbone, template.format(w), others, q) for w in ranked.words]
        # Candidates are rounded to float16 once: 1e-3 bounds the error of a cosine.
        np.testing.assert_allclose(ranked.distances.numpy(), slow, atol=1e-3)
        assert ranked.distances.dtype == torch.float32
        assert (ranked.distances.diff() <= 0).all()
        assert len(ranked.words) == ranked.total == len(set(ranked.words))


def test_ties_go_to_the_first_word(tmp_path: Path) -> None:
    class Flat(type(toy_backbone())):  # type: ignore[misc]
        def encode_texts(self, texts, batch_size=1024):  # type: ignore[no-untyped-def]
            return torch.ones(len(texts), self.dim) / self.dim**0.5

    words = Candidates.of(["zebu", "ark", "mast", "kiln"])
    ranking = rank(Flat(0, 16, 12, 1), ["x"], candidates=words, cache_dir=tmp_path)
    assert ranking.nouns.words == ("ark", "kiln", "mast", "zebu")


def test_slot_order_and_split(tmp_path: Path) -> None:
    ranking = rank(toy_backbone(), CLASSES, candidates=WORDS, cache_dir=tmp_path)
    found = mine(toy_backbone(), CLASSES, 10, candidates=WORDS, cache_dir=tmp_path)
    assert (ranking.adjectives.total, ranking.nouns.total) == (16, 60 - 2 + 1)
    assert found.kinds == ("adjective",) * 2 + ("noun",) * 8  # floor(10 * 16 / 75)
    assert found.words == ranking.adjectives.words[:2] + ranking.nouns.words[:8]
    expected = torch.cat([ranking.adjectives.distances[:2], ranking.nouns.distances[:8]])
    assert torch.equal(found.distances, expected)


def test_share_of_adjectives(tmp_path: Path) -> None:
    def take(share: float) -> int:
        options = {"candidates": WORDS, "cache_dir": tmp_path}
        found = mine(toy_backbone(), CLASSES, 10, adjective_share=share, **options)
        return found.kinds.count("adjective")

    assert [take(0.0), take(0.29), take(1.0)] == [0, 3, 10]
    with pytest.raises(ConfigError, match="share"):
        take(1.5)


def test_band(tmp_path: Path) -> None:
    options = {"candidates": Candidates.of(NOUNS), "cache_dir": tmp_path}
    order = rank(toy_backbone(), CLASSES, **options).nouns.words
    total = len(order)

    def take(count: int, *band: float) -> list[int]:
        found = mine(toy_backbone(), CLASSES, count, band=band, **options)
        return [order.index(word) for word in found.words]

    assert take(5, 0.0, 0.0) == [0, 1, 2, 3, 4]
    start = int(0.5 * total)
    assert take(5, 0.5, 0.5) == list(range(start, start + 5))
    whole = take(5, 0.0, 1.0)
    assert whole[0] == 0
    assert whole[-1] == total - 1
    assert set(np.diff(whole)) <= {(total - 1) // 4, (total - 1) // 4 + 1}
    assert take(total, 0.0, 0.1) == list(range(total))
    assert take(1, 0.2, 0.4) == [int(0.2 * total)]
    for bad in ((0.5, 0.2), (-0.1, 0.2), (0.0, 1.1)):
        with pytest.raises(ConfigError, match="band"):
            take(3, *bad)
    with pytest.raises(ConfigError, match="only"):
        take(total, 0.1, 0.1)


def test_impossible_requests(tmp_path: Path) -> None:
    options = {"candidates": WORDS, "cache_dir": tmp_path}
    toy = toy_backbone()
    assert len(mine(toy, CLASSES, 0, **options)) == 0
    with pytest.raises(ConfigError, match="only"):
        mine(toy, CLASSES, 1000, **options)
    with pytest.raises(ConfigError, match="0 or more"):
        mine(toy, CLASSES, -1, **options)
    with pytest.raises(ConfigError, match="quantile"):
        mine(toy, CLASSES, 3, quantile=1.5, **options)
    with pytest.raises(ConfigError, match="template"):
        mine(toy, CLASSES, 3, template_noun="nothing", **options)
    with pytest.raises(ConfigError, match="at least one"):
        mine(toy, [], 3, **options)


def test_key_changes_with_each_ingredient() -> None:
    toy = toy_backbone()
    base = {"backbone": toy, "classes": CLASSES, "words": WORDS}
    changes = [
        {"backbone": toy_backbone(seed=1)},
        {"classes": CLASSES[1:]},
        {"classes": ["bus", *CLASSES[1:]]},
        {"noun": "A {}."},
        {"adjective": "A {}."},
        {"quantile": 0.9},
        {"words": Candidates.of(NOUNS[1:], ADJECTIVES, SYNSETS)},
        {"words": Candidates.of(NOUNS, ADJECTIVES[1:], SYNSETS)},
        {"words": Candidates.of(NOUNS, ADJECTIVES, SYNSETS[1:])},
    ]
    keys = [Query.of(**(base | change)).key for change in [{}, *changes]]
    assert len(set(keys)) == len(keys)
    assert Query.of(**(base | {"classes": CLASSES[::-1]})).key == keys[0]


class Counting:
    """Counts the texts a backbone encodes."""

    def __init__(self, backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        inner = backbone.encode_texts

        def encode(texts: list[str], batch_size: int = 1024) -> torch.Tensor:
            self.count += len(texts)
            return inner(texts, batch_size)

        monkeypatch.setattr(backbone, "encode_texts", encode)

    def since(self) -> int:
        count, self.count = self.count, 0
        return count


def test_cache_saves_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = toy_backbone()
    encoded = Counting(backbone, monkeypatch)
    options = {"candidates": WORDS, "cache_dir": tmp_path}
    size = len(WORDS.nouns) + len(WORDS.adjectives)
    first = mine(backbone, CLASSES, 10, **options)
    assert encoded.since() == size + len(CLASSES)
    longer = mine(backbone, CLASSES[::-1], 30, **options)
    assert encoded.since() == 0
    assert set(first.words) <= set(longer.words)
    mine(backbone, CLASSES[:3], 10, **options)  # another class list: only its names
    assert encoded.since() == 3
    fresh = mine(backbone, CLASSES, 30, candidates=WORDS, cache_dir=tmp_path / "other")
    assert fresh.words == longer.words
    assert torch.equal(fresh.distances, longer.distances)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "nonsense"])
@pytest.mark.parametrize("kind", ["ranking", "features"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, kind: str, damage: str) -> None:
    options = {"candidates": WORDS, "cache_dir": tmp_path}
    before = mine(toy_backbone(), CLASSES, 20, **options)
    if kind == "features":  # else the ranking would hide it
        next(tmp_path.glob("ranking-*")).unlink()
    path = next(tmp_path.glob(f"{kind}-*"))
    good = path.read_bytes()
    bad = {
        "cut": good[:-7],
        "flip": good[:-3] + bytes([good[-3] ^ 1]) + good[-2:],
        "empty": b"",
        "nonsense": b"not a tensor file at all",
    }[damage]
    path.write_bytes(bad)
    with pytest.warns(UserWarning, match="made again"):
        after = mine(toy_backbone(), CLASSES, 20, **options)
    assert after.words == before.words
    assert torch.equal(after.distances, before.distances)
    # the same file but for the order of the two entries in its header, which safetensors draws
    assert sorted(path.read_bytes()) == sorted(good)


def test_an_unusable_cache_folder_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="could not be kept"):
        found = mine(toy_backbone(), CLASSES, 5, candidates=WORDS, cache_dir=tmp_path / "file")
    assert len(found) == 5


def test_default_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path))
    mine(toy_backbone(), CLASSES, 5, candidates=WORDS)
    assert len(list((tmp_path / "negatives").iterdir())) == 2


@pytest.mark.slow
def test_same_words_under_another_hash_seed(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from focoop.scenario.negatives import Candidates, mine\n"
        "from tests.helpers import toy_backbone\n"
        "nouns, adjectives, synsets, classes = json.loads(sys.argv[1])\n"
        "words = Candidates.of(set(nouns), set(adjectives), synsets)\n"
        "found = mine(toy_backbone(), classes, 20, candidates=words, cache_dir=Path(sys.argv[2]))\n"
        "print(json.dumps([found.words, found.distances.tolist()]))\n"
    )
    told = json.dumps([NOUNS, ADJECTIVES, SYNSETS, CLASSES])
    command = [sys.executable, "-c", script, told, str(tmp_path / "there")]
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    there = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True)
    here = mine(toy_backbone(), CLASSES, 20, candidates=WORDS, cache_dir=tmp_path / "here")
    assert json.loads(there.stdout) == [list(here.words), here.distances.tolist()]


def test_demo_ranking_is_packaged(mini: Backbone, tmp_path: Path) -> None:
    document = json.loads(negatives.PACKAGED.read_text())
    (key,) = document["rankings"]
    classes = document["rankings"][key]["classes"]
    assert Query.of(mini, classes).key == key, "run tools/make_demo_negatives.py again"
    found = mine(mini, classes, 100, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())  # nothing was encoded
    assert (found.kinds.count("adjective"), found.kinds.count("noun")) == (17, 83)
    names = set().union(*map(forms, classes))
    assert not any(forms(word) & names for word in found.words)


@pytest.mark.slow
def test_demo_ranking_equals_mining(mini: Backbone, tmp_path: Path) -> None:
    (entry,) = json.loads(negatives.PACKAGED.read_text())["rankings"].values()
    given = mine(mini, entry["classes"], 1000, cache_dir=tmp_path)
    mined = mine(mini, entry["classes"], 1000, cache_dir=tmp_path, rankings=None)
    # Candidates are kept in float16: where another processor's last bit differs, an entry of about
    # 0.3 moves by 2**-12, its product with a class's by less than 1e-4, and near ties may swap.
    torch.testing.assert_close(given.distances, mined.distances, atol=1e-4, rtol=0)
    assert len(set(given.words) & set(mined.words)) >= 995
    full = rank(mini, entry["classes"], cache_dir=tmp_path)
    for kind in ("adjectives", "nouns"):
        assert getattr(full, kind).total == entry[kind]["total"]

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from focoop.scenario.wordnet import WORDNET

ROOT = Path(__file__).resolve().parents[2]
DATABASE = Path("/usr/share/wordnet")

# Lines of the lists that NegLabel published.
PUBLISHED = {
    "adj.all": 10_007,
    "adj.pert": 3_400,
    "adj.ppl": 60,
    "noun.Tops": 50,
    "noun.act": 5_897,
    "noun.artifact": 10_345,
    "noun.attribute": 2_729,
    "noun.body": 1_978,
    "noun.cognition": 2_775,
    "noun.communication": 5_090,
    "noun.event": 998,
    "noun.feeling": 413,
    "noun.group": 2_407,
    "noun.location": 2_959,
    "noun.motive": 41,
    "noun.object": 1_501,
    "noun.person": 9_619,
    "noun.phenomenon": 629,
    "noun.plant": 7_631,
    "noun.possession": 998,
    "noun.process": 719,
    "noun.quantity": 1_195,
    "noun.relation": 411,
    "noun.shape": 331,
    "noun.state": 3_413,
    "noun.substance": 2_926,
    "noun.time": 933,
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_wordlists", ROOT / "tools/make_wordlists.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packaged() -> dict[str, set[str]]:
    files = json.loads(gzip.decompress(WORDNET.read_bytes()))["files"]
    return {
        name: {entry.split("|")[0] for entry in joined.split(";")} for name, joined in files.items()
    }


def test_counts_are_near_the_published_lists() -> None:
    words = packaged()
    assert set(words) == set(PUBLISHED)
    for name, count in PUBLISHED.items():
        # adj.all: 987 more words than published, for a reason not known.
        allowed = 0.10 if name == "adj.all" else 0.01
        assert abs(len(words[name]) - count) <= allowed * count, name
    nouns = set().union(*(found for name, found in words.items() if name.startswith("noun.")))
    assert abs(len(nouns) - 58_546) <= 32


def test_words_are_clean() -> None:
    for found in packaged().values():
        for word in found:
            assert word == word.strip().lower()
            assert word
            assert not set("_|;(") & set(word), word


def test_a_small_database(tool: ModuleType, tmp_path: Path) -> None:
    licence = "  1 All rights \n  2 reserved.  \n"
    nouns = [
        "00000001 06 n 03 sofa 0 couch 0 Lounge_Act 1 001 @ 00000002 n 0000 | a seat; a gloss  ",
        "00000002 06 n 01 Swiss_Army_knife 0 000 | a knife  ",
        "00000003 05 n 01 cat 0 000 | an animal  ",
        "00000004 28 n 01 sofa 1 000 | a time  ",
        "00000005 06 n 01 sofa 2 000 | another sofa  ",
    ]
    adjectives = ["00000001 00 s 02 galore(ip) 0 many_a(a) 0 000 | in plenty  "]
    (tmp_path / "data.noun").write_text(licence + "\n".join(nouns) + "\n")
    (tmp_path / "data.adj").write_text(licence + "\n".join(adjectives) + "\n")
    found = {name: lines for name, lines in tool.entries(tmp_path).items() if lines}
    assert found == {
        "adj.all": ["galore|many a"],
        "noun.artifact": ["sofa|couch", "swiss army knife"],
        "noun.time": ["sofa"],
    }
    assert tool.licence(tmp_path / "data.noun") == "All rights\nreserved.\n"


def test_version_follows_the_content(tool: ModuleType) -> None:
    one, other = ({"noun.act": words} for words in (["a", "b"], ["a", "c"]))
    version = {json.loads(tool.document(files))["version"] for files in (one, other, one)}
    assert len(version) == 2


@pytest.mark.slow
def test_the_tool_gives_the_packaged_files(tool: ModuleType) -> None:
    if not (DATABASE / "data.noun").is_file():
        pytest.skip("WordNet 3.0 is absent: install the Debian package wordnet-base")
    packed = gzip.decompress(WORDNET.read_bytes())
    assert tool.document(tool.entries(DATABASE)) == packed.decode("ascii")
    terms = (WORDNET.parent / "LICENSE.txt").read_text(encoding="ascii")
    assert tool.licence(DATABASE / "data.noun") == terms

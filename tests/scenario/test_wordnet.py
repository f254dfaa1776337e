import pytest

from focoop.scenario.negatives import adjective_count
from focoop.scenario.wordnet import Candidates, candidates, forms

CLASSES = ["maple_tree", "Bus", "couch", "mouse", "lawn_mower", "child"]
WORDS = Candidates.of(
    ["buses", "Mice", "lawnmower", "bush", "sofa", "lounge", "acer", "ark"],
    ["bush", "loud"],
    [("sofa", "couch", "lounge"), ("loud", "noisy"), ("acer", "maple trees")],
)


def test_adjectives_that_are_nouns_are_nouns() -> None:
    assert WORDS.adjectives == ("loud",)
    assert "bush" in WORDS.nouns


def test_id_names_synonyms_and_plurals_are_left_out() -> None:
    kept = WORDS.without(CLASSES)
    assert kept.nouns == ("ark", "bush")
    assert kept.adjectives == ("loud",)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sweet_pepper", "Sweet Peppers"),
        ("leaf", "leaves"),
        ("knife", "knives"),
        ("cherry", "cherries"),
        ("box", "boxes"),
        ("house", "houses"),
        ("fireman", "firemen"),
        ("T-shirt", "t shirts"),
        ("pick up truck", "pickup trucks"),
    ],
)
def test_forms_meet(one: str, other: str) -> None:
    assert forms(one) & forms(other)


@pytest.mark.parametrize(("one", "other"), [("bus", "bush"), ("glass", "glas"), ("cat", "car")])
def test_forms_of_different_words_do_not_meet(one: str, other: str) -> None:
    assert not forms(one) & forms(other)


def test_real_lists_lose_synonyms_of_cifar_names() -> None:
    kept = candidates().without(["couch", "pickup_truck", "maple_tree", "television", "streetcar"])
    words = {*kept.nouns, *kept.adjectives}
    assert not words & {"couch", "sofa", "pickup", "television receiver", "streetcar", "tramcar"}
    assert {"oboe", "pick", "horn-shaped"} <= words


def test_a_class_name_may_list_several() -> None:
    assert Candidates.of(["bus", "coach", "van"]).without(["bus, coach"]).nouns == ("van",)


def test_packaged_lists() -> None:
    words = candidates()
    assert (len(words.nouns), len(words.adjectives)) == (58_514, 12_280)
    assert not set(words.nouns) & set(words.adjectives)
    assert list(words.nouns) == sorted(words.nouns)
    # The published lists (11,454 : 58,546) give 16; adj.all is a tenth longer here.
    assert adjective_count(100, 11_454, 58_546) == 16
    assert adjective_count(100, len(words.adjectives), len(words.nouns)) == 17

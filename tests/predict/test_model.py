"""Models answer as their run does, whatever the method, and go through a file unchanged."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.clip import ImageFeatures
from focoop.errors import ConfigError, DataError, MethodError, RunError
from focoop.federation import start
from focoop.fields import plain
from focoop.methods import available, create
from focoop.predict import Calibration, Facts, Model, SiteCalibration, Sketch, read_model
from focoop.predict.from_run import folded
from focoop.predict.share import likely_share
from focoop.predict.side import evidence
from tests.helpers import toy_backbone
from tests.methods.contract_toy import CLASSES, SEED, WORDS, Outcome, federate, make_task

ALL = list(available())
GLOBAL = [name for name in ALL if name != "local_only"]
HELD = [[0, 0, 0, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3]]  # classes of two clients
LABELS = [0, 1, 2, 3, -1, 0, 2, -1]


@cache
def outcome(name: str) -> Outcome:
    method = create(name)
    return federate(method, make_task(method), HELD, rounds=2 if method.trains else 0)


def model_of(name: str, calibration: Calibration | None = None) -> Model:
    done = outcome(name)
    method, task, shared = done.method, done.task, done.server.shared
    facts = Facts(
        method=name,
        settings=plain(method.config),
        classes=CLASSES,
        clients=("north", "south"),
        holders=((0,), (0,), (1,), (1,)),
        ood_names=WORDS if method.needs_ood else (),
        backbone="toy",
        weights="",
        fingerprint="toy",
        image_fingerprint=toy_backbone().image_fingerprint,
        logit_scale=task.logit_scale,
        revision=method.revision,
    )
    initial = start(method, task, SEED)

    def side(client: int | None):  # type: ignore[no-untyped-def]
        counts = torch.bincount(torch.tensor(HELD[client or 0]), minlength=4)
        private = None if client is None else done.store.load(0 if method.pools_data else client)
        counts = counts if client is not None else torch.zeros_like(counts)
        return folded(method, task, initial, shared, client, private, counts)

    keys = [0, 1] if name == "local_only" else [None, 0, 1]
    return Model(facts, method, task, side, keys, toy_backbone, calibration)


def images(name: str) -> ImageFeatures:
    return outcome(name).images(LABELS, "asked")


@pytest.mark.parametrize("name", ALL)
def test_every_method_answers_as_its_evaluation_and_through_a_file(
    name: str, tmp_path: Path
) -> None:
    model, done, asked = model_of(name), outcome(name), images(name)
    saved = read_model(model.save(tmp_path / "model"))
    assert saved.sides == model.sides and saved.classes == CLASSES
    for client in (0, 1):
        party = 0 if done.method.pools_data else client
        logits, scores = done.answers(party, asked)  # type: ignore[arg-type]
        for asked_model in (model, saved):
            answers = asked_model.decide(asked, client=client)
            if not done.method.pools_data:  # whose clients there share one party's counts
                best = [CLASSES[place] for place in logits.argmax(dim=1).tolist()]
                assert [answer.top[0].label for answer in answers] == best
                # The evaluation computes in float32, a model judges in float64.
                np.testing.assert_allclose([a.score for a in answers], scores, 1e-6, 1e-5)
            assert {answer.verdict for answer in answers} <= {"own", "other"}
            assert all(abs(sum(c.probability for c in a.top) - 1) < 1e-6 for a in answers)
    again = saved.decide(asked, client="south", open_share=0.5)
    for one, other in zip(model.decide(asked, client=1, open_share=0.5), again, strict=True):
        assert one.top[0].label == other.top[0].label
        assert one.probability == pytest.approx(other.probability, abs=1e-5)


@pytest.mark.parametrize("name", GLOBAL)
def test_the_global_model_has_no_own_classes(name: str) -> None:
    model = model_of(name)
    answers = model.decide(images(name))
    assert {answer.verdict for answer in answers} == {"known"}
    assert model.own_classes("global") == () and not any(c.own for a in answers for c in a.top)
    assert model.own_classes("north") == ("apple", "pear")
    assert answers[0].top[0].holders in (("north",), ("south",))


def test_local_models_alone_have_no_global_one() -> None:
    model = model_of("local_only")
    assert model.sides == ("north", "south") and model.client == 0
    with pytest.raises(RunError, match="north, south"):
        model.decide(images("local_only"), client="global")
    done = outcome("local_only")
    with pytest.raises(MethodError, match="shares nothing"):
        folded(done.method, done.task, done.initial, {}, None, None, torch.zeros(4).long())


@pytest.mark.parametrize("name", ["promptfl", "focoop_plus", "local_only"])
def test_the_dial_goes_from_own_classes_to_all(name: str) -> None:
    model, asked = model_of(name), images(name)
    alone = model.decide(asked, client=0, open_share=0.0)
    assert {answer.verdict for answer in alone} == {"own"}
    everyone = model.decide(asked, client=0, open_share=1.0)
    assert [a.top[0].label for a in everyone] == [a.nearest_id for a in everyone]
    assert [a.score for a in alone] == [a.score for a in everyone]  # thresholds hold at any share
    own = [sum(c.probability for c in a.top if c.own) for a in everyone]
    less = [
        sum(c.probability for c in a.top if c.own)
        for a in model.decide(asked, client=0, open_share=0.2)
    ]
    assert all(a > b for a, b in zip(less, own, strict=True))


def test_the_estimated_position_of_the_dial_is_the_likeliest() -> None:
    model, shown = model_of("focoop_plus"), images("focoop_plus")
    share = model.estimate_open_share(shown, client=0)
    counts = np.bincount(HELD[0], minlength=4) / len(HELD[0])
    side = model.side(0)
    odds = evidence(model.method, model.task, side, shown.pooled, None).plain.double().numpy()
    odds = model.method.answer_scale(model.task) * odds

    def likelihood(position: float) -> float:
        prior = (1 - position) * counts + position / 4
        return float(np.log((np.exp(odds) * prior).sum(axis=1)).sum())

    shares = np.linspace(0.0, 1.0, 2001)
    best = shares[np.argmax([likelihood(one) for one in shares])]
    assert share == pytest.approx(best, abs=2e-3)
    asked = model.decide(shown, client=0, open_share="auto")
    assert asked == model.decide(shown, client=0, open_share=share)
    assert model.estimate_open_share(shown) == model.open_share  # nobody's classes are own
    strict = model_of("focoop_plus", calibrated(-1e9, 0.0))
    assert strict.estimate_open_share(shown, client=0) == model.open_share  # none is known
    for wrong in ("much", "nan", float("nan"), 1.5):
        with pytest.raises(ConfigError, match=r"0 to 1, or 'auto'"):
            model.decide(shown, client=0, open_share=wrong)


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.floats(0.05, 0.95))
def test_the_estimated_share_is_the_true_one_where_classes_are_told_apart(
    seed: int, share: float
) -> None:
    draw = np.random.default_rng(seed)
    other = draw.random(4000) < share
    # log B - log A of two normal densities, one standard deviation apart or more
    value = draw.normal(np.where(other, 1.5, -1.5), 1.0)
    found = likely_share(torch.zeros(4000), torch.as_tensor(3.0 * value))
    assert found == pytest.approx(other.mean(), abs=0.05)


def test_without_a_method_s_own_prior_the_dial_is_one_bias_on_own_classes() -> None:
    model, asked = model_of("promptfl"), images("promptfl")
    share = 0.25
    given = model.decide(asked, client=0, open_share=share, top=4)
    plain_ones = model.decide(asked, client=0, top=4)
    odds = (1 - share) / 2 + share / 4, share / 4  # of an own class, of another
    for one, other in zip(given, plain_ones, strict=True):
        weighed = {c.label: c.probability * odds[0 if c.own else 1] for c in other.top}
        total = sum(weighed.values())
        for entry in one.top:
            assert entry.probability == pytest.approx(weighed[entry.label] / total, rel=1e-4)


def calibrated(threshold: float, class_threshold: float) -> Calibration:
    sketch = Sketch.of(np.linspace(-1, 1, 40))
    site = SiteCalibration(40, "own", threshold, class_threshold, sketch, sketch)
    return Calibration(0.95, 2, {"0": site})


def test_above_the_threshold_the_answer_is_unknown() -> None:
    scores = [a.score for a in model_of("focoop").decide(images("focoop"), client=0)]
    middle = float(np.median(scores))
    model = model_of("focoop", calibrated(middle, 0.5))
    answers = model.decide(images("focoop"), client=0)
    for answer in answers:
        assert (answer.verdict == "unknown") == (answer.score > middle)
        assert (answer.label is None) == (answer.verdict == "unknown")
        assert answer.threshold == middle and 0 < (answer.p_value or 0) <= 1
        likely = tuple(c.label for c in answer.top if c.probability >= 0.5)
        assert answer.class_set == (likely or (answer.top[0].label,))
        assert answer.nearest_ood in WORDS and answer.nearest_id in CLASSES
    other = model.decide(images("focoop"), client=1)  # not calibrated
    assert {(a.p_value, a.threshold, a.class_set) for a in other} == {(None, None, None)}


def test_class_sets_and_scores_stay_where_the_dial_moves() -> None:
    model = model_of("focoop_plus", calibrated(0.0, 0.7))
    usual = model.decide(images("focoop_plus"), client=0)
    moved = model.decide(images("focoop_plus"), client=0, open_share=0.9)
    assert [a.class_set for a in usual] == [a.class_set for a in moved]
    assert [a.verdict == "unknown" for a in usual] == [a.verdict == "unknown" for a in moved]


def test_bad_input_is_refused_with_what_to_do() -> None:
    model, asked = model_of("promptfl"), images("promptfl")
    with pytest.raises(ConfigError, match="open_share"):
        model.decide(asked, open_share=1.5)
    with pytest.raises(ConfigError, match="top"):
        model.decide(asked, top=0)
    with pytest.raises(DataError, match=r"\(N, 16\)"):
        model.decide(np.zeros((2, 3)))
    with pytest.raises(DataError, match="names"):
        model.decide(asked, sources=["one"])
    with pytest.raises(RunError, match="north"):
        model.decide(asked, client="nort")
    with pytest.raises(RunError, match="does not answer for 7"):
        model.decide(asked, client=7)
    with pytest.raises(DataError, match="apple"):
        model.holders("aple")
    with pytest.raises(MethodError, match="patch"):
        model_of("fedlocoop").decide(asked.pooled)
    assert model.decide(torch.zeros(0, 16)) == []


def test_a_table_has_a_row_per_image() -> None:
    table = model_of("focoop").decide(images("focoop"), client=0, top=2).to_pandas()
    assert len(table) == len(LABELS) and list(table.columns)[:3] == ["source", "verdict", "label"]
    assert table["top"][0].count(";") == 1
    for label, holders in zip(table["label"], table["holders"], strict=True):
        assert holders == ("north" if label in CLASSES[:2] else "south")
    nobody = model_of("focoop", calibrated(-1e9, 0.5)).decide(images("focoop"), client=0)
    assert set(nobody.to_pandas()["holders"]) == {""}
    assert model_of("focoop").decide(torch.zeros(0, 16)).to_pandas().empty


@pytest.mark.parametrize("name", ["promptfl", "focoop_plus", "fedotp", "fedgallop", "fedlocoop"])
def test_a_heat_map_has_a_value_per_patch(name: str) -> None:
    from PIL import Image

    from focoop.predict import overlay
    from focoop.predict.heat_map import patch_similarities

    method, side = outcome(name).method, model_of(name).side(0)
    asked = images(name)
    patches = asked.pooled[:1, None].expand(1, 4, -1).clone()
    patches[0, 3] = -patches[0, 3]
    one = ImageFeatures(asked.pooled[:1], patches)
    heat = patch_similarities(method, side, one, 0, torch.device("cpu"))
    assert heat.shape == (2, 2) and heat[0, 0] == pytest.approx(heat[0, 1], abs=1e-6)
    assert heat[1, 1] < heat[0, 0]
    drawn = overlay(Image.new("RGB", (300, 240), "grey"), heat)
    assert drawn.size == (240, 240)
    bright = np.asarray(drawn.convert("L"))
    assert bright[:60, :60].mean() > bright[-60:, -60:].mean() + 20


@pytest.mark.parametrize("name", ALL)
def test_the_card_says_what_was_made_of_the_images(name: str, tmp_path: Path) -> None:
    text = (model_of(name).save(tmp_path / "model") / "README.md").read_text()
    learned, added = "learned with the method", "added up with the method"
    kind = available()[name]
    assert (learned in text) == (kind.trains and not kind.closed_form)
    assert (added in text) == kind.closed_form
    assert not kind.closed_form or kind.shares in text

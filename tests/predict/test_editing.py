"""Classes and clients are added, dropped and renamed without training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from focoop.clip import ImageFeatures
from focoop.errors import ConfigError, DataError, MethodError
from focoop.methods import available
from focoop.predict import Model, read_model
from tests.helpers import toy_backbone
from tests.methods.contract_toy import CLASSES
from tests.predict.test_model import calibrated, images, model_of

ALL = list(available())


def toy(name: str) -> Model:
    model = model_of(name, calibrated(0.1, 0.5))
    backbone = toy_backbone(dim=16)  # the width of the toy's features
    model.facts = replace(model.facts, image_fingerprint=backbone.image_fingerprint)
    model.__dict__["backbone"] = backbone
    return model


@pytest.mark.parametrize("name", ALL)
def test_a_dropped_class_leaves_the_others_similarities(name: str, tmp_path: Path) -> None:
    model, asked = toy(name), images(name)
    left = model.without_class("pear")
    kept = tuple(label for label in CLASSES if label != "pear")
    assert left.classes == kept and left.calibration is None
    saved = read_model(left.save(tmp_path / "model"))
    before = model.decide(asked, client=1, open_share=1.0, top=4)
    after = saved.decide(asked, client=1, open_share=1.0, top=4)
    for one, other in zip(before, after, strict=True):  # the odds of the classes that are left stay
        old = {c.label: c.probability for c in one.top if c.label in kept}
        total = sum(old.values())
        assert {entry.label for entry in other.top} == set(kept)
        if total > 1e-6 and name != "tofa":  # which weighs all classes of an image together
            for entry in other.top:
                assert entry.probability == pytest.approx(old[entry.label] / total, abs=2e-4)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "class pear dropped" in card and "Not calibrated" in card


@pytest.mark.parametrize("name", ["fedncm", "fedlda", "focoop_plus", "gda_clip"])
def test_a_class_that_comes_back_by_its_images_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toy(name)
    means = torch.nn.functional.normalize(torch.randn(6, 16), dim=-1)
    monkeypatch.setattr(
        Model, "encode", lambda *_, **__: ImageFeatures(means[:1].repeat(3, 1), None)
    )
    grown = model.with_class("lemon", ["three.jpg"], client="north")
    assert grown.classes[-1] == "lemon" and grown.holders("lemon") == ("north",)
    assert grown.side("north").counts[-1] == 3 and grown.side("south").counts[-1] == 0
    answer = grown.decide(means[:1], client="north", open_share=1.0)[0]
    assert answer.label == "lemon" and answer.verdict == "own"
    assert grown.decide(means[:1], client="south", open_share=1.0)[0].verdict == "other"


@pytest.mark.parametrize("name", [name for name in ALL if name != "fed3r"])
def test_a_class_by_its_name_alone(name: str, tmp_path: Path) -> None:
    model = toy(name)
    grown = model.with_class("red_lemon")
    saved = read_model(grown.save(tmp_path / "model"))
    assert saved.classes == (*CLASSES, "red_lemon") and saved.holders("red_lemon") == ()
    answers = saved.decide(images(name), client=1, open_share=1.0, top=5)
    chances = [[c.probability for c in a.top if c.label == "red_lemon"] for a in answers]
    assert all(len(one) == 1 and np.isfinite(one).all() for one in chances)
    assert "class red_lemon added by its name" in (tmp_path / "model" / "README.md").read_text()


def test_a_class_that_comes_back_by_its_name_is_the_one_it_was() -> None:
    model, asked = toy("zeroshot"), images("zeroshot")
    texts = [f"a photo of a {name}." for name in CLASSES]
    anchors = model.backbone.encode_texts(texts)
    model.task = replace(model.task, anchors=anchors)
    for key in model.keys:
        side = model.side("global" if key is None else key)
        model._made[key] = replace(side, text=replace(side.text, id=anchors))
    back = model.without_class("pear").with_class("pear")
    for one, other in zip(model.decide(asked), back.decide(asked), strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-6)
        assert one.top[0].label == other.top[0].label


def test_a_new_client_answers_as_one_that_has_its_classes() -> None:
    model, asked = toy("focoop_plus"), images("focoop_plus")  # private: counts alone
    counts = dict(zip(CLASSES, model.side("south").counts.tolist(), strict=True))
    grown = model.with_client("west", {name: n for name, n in counts.items() if n})
    assert grown.clients == ("north", "south", "west") and grown.calibration == model.calibration
    ours, theirs = grown.decide(asked, client="west"), model.decide(asked, client="south")
    assert [a.label for a in ours] == [a.label for a in theirs]
    np.testing.assert_allclose([a.score for a in ours], [a.score for a in theirs], atol=1e-9)
    assert grown.holders(CLASSES[2]) == ("south", "west") and grown.holders(CLASSES[0]) == (
        "north",
    )


def test_a_renamed_class_keeps_scores_and_thresholds() -> None:
    model, asked = toy("promptfl"), images("promptfl")
    new = model.renamed("pear", "quince")
    for one, other in zip(model.decide(asked, client=0), new.decide(asked, client=0), strict=True):
        assert one.score == other.score and one.verdict == other.verdict
        assert (one.label or "").replace("pear", "quince") == (other.label or "")
    assert new.calibration is model.calibration


def test_what_cannot_be_changed_says_why() -> None:
    with pytest.raises(MethodError, match="regression"):
        toy("fed3r").with_class("lemon")
    with pytest.raises(MethodError, match="name alone"):
        toy("promptfl").with_class("lemon", ["a.jpg"])
    with pytest.raises(ConfigError, match="already"):
        toy("promptfl").with_class("pear")
    with pytest.raises(DataError, match="no class 'paer'"):
        toy("promptfl").without_class("paer")
    with pytest.raises(MethodError, match="--client global"):
        toy("local_only").with_client("west", ["pear"])
    with pytest.raises(ConfigError, match="which classes"):
        toy("promptfl").with_client("west")
    with pytest.raises(ConfigError, match="already"):
        toy("promptfl").with_client("north", ["pear"])

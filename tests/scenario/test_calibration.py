"""Calibration images are nobody's training or test images, and cost no run its bits."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.config import loading
from focoop.errors import ConfigError
from focoop.scenario import client_split, make_split
from focoop.scenario.calibration import set_aside
from focoop.scenario.partition import iid, take_shots
from focoop.scenario.scenario import calibration_images
from tests.toy_setting import CLASSES, write_setting


@settings(max_examples=40)
@given(
    st.integers(1, 4), st.integers(4, 60), st.integers(0, 9), st.sampled_from([-1.0, 0.0, 0.3, 0.9])
)
def test_drawn_and_calibration_images_are_apart(
    clients: int, images: int, shots: int, share: float
) -> None:
    labels = np.arange(images) % 3
    held = iid(3, clients).assign(labels, seed=1)
    drawn = take_shots(held, labels, shots or None, seed=2).indices
    kept, aside = set_aside(drawn, held, labels, share, seed=3)
    for before, after, rows, own in zip(drawn, kept, aside, held, strict=True):
        assert not set(after) & set(rows) and set(rows) <= set(own)
        assert len(set(rows)) == len(rows)
        if share in (-1.0, 0.0):
            np.testing.assert_array_equal(after, before)
        for label in range(3):
            members = [row for row in own if labels[row] == label]
            found = sum(labels[row] == label for row in rows)
            left = len(members) - len({row for row in before if labels[row] == label})
            if share == -1.0:
                assert found == min(round(0.5 * len(members)), left)
            elif share > 0 and members:
                most = len(members) - 1 if left < round(share * len(members)) else len(members)
                assert found == min(round(share * len(members)), most)
                assert any(labels[row] == label for row in after) or found < len(members)


def test_a_run_trains_on_the_same_images_with_and_without(tmp_path: Path) -> None:
    path = write_setting(tmp_path)  # 8 images of a class, 2 shots
    with_some, without = (
        make_split(loading.load(path, [f"data.calibration={share}"])) for share in (-1, 0)
    )
    for a, b in zip(with_some.train_index, without.train_index, strict=True):
        np.testing.assert_array_equal(a, b)
    assert calibration_images(without) is None
    images = calibration_images(with_some)
    assert images is not None and len(images.images) == len(CLASSES) * 4
    assert [len(rows) for rows in images.index] == [8, 8]
    for client, rows in enumerate(images.index):
        classes = set(with_some.train.labels[with_some.train_index[client]].tolist())
        assert set(images.images.labels[rows].tolist()) == classes


def test_all_images_are_trained_on_unless_some_are_asked_for(tmp_path: Path) -> None:
    path = write_setting(tmp_path)
    usual = make_split(loading.load(path, ["partition.shots=0"]))
    assert calibration_images(usual) is None and sum(map(len, usual.train_index)) == 32
    asked = make_split(loading.load(path, ["partition.shots=0", "data.calibration=0.25"]))
    assert sum(map(len, asked.train_index)) == 24
    images = calibration_images(asked)
    assert images is not None and len(images.images) == 8


def test_a_site_alone_sets_the_images_aside_that_the_simulator_does(tmp_path: Path) -> None:
    path = write_setting(tmp_path)
    config = loading.load(path, ["partition.clients=1"])
    whole = make_split(config)
    alone = client_split(config, client=0, clients=1, classes=CLASSES)
    np.testing.assert_array_equal(whole.calibration_index[0], alone.calibration_index[0])


def test_a_share_between_minus_one_and_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.calibration"):
        loading.load(None, ["data.calibration=-0.5"])

"""Batches, drift, keys and limits apart from HTTP."""

import threading
import time
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binom

from focoop.errors import ConfigError
from focoop.predict import Sketch
from focoop.serve import KeyFile, Limits, add_key
from focoop.serve.batching import Batcher, QueueFull, Stopped
from focoop.serve.drift import FEWEST, LEVEL, WINDOW, DriftCounter, band
from focoop.serve.guard import is_loopback
from focoop.serve.served import flagged_share


def doubled(group: Hashable, asked: Sequence[int]) -> list[int]:
    if 13 in asked:
        raise ValueError("unlucky")
    return [2 * one for one in asked]


def test_a_batch_holds_one_group_and_keeps_the_order() -> None:
    seen: list[tuple[Hashable, list[int]]] = []
    first = threading.Event()

    def work(group: Hashable, asked: Sequence[int]) -> list[int]:
        assert first.wait(10)
        seen.append((group, list(asked)))
        return doubled(group, asked)

    batcher = Batcher(work, batch=3, wait=0.0, queue=100)
    opening = batcher.ask("a", [0])
    while batcher.waiting:
        time.sleep(0.001)
    answers = batcher.ask("a", [1, 2]) + batcher.ask("b", [5]) + batcher.ask("a", [3, 4])
    first.set()
    assert [one.result(10) for one in opening + answers] == [0, 2, 4, 10, 6, 8]
    assert seen[1:] == [("a", [1, 2, 3]), ("b", [5]), ("a", [4])]
    assert batcher.stop(5) and not batcher.alive
    with pytest.raises(Stopped):
        batcher.ask("a", [1])


def test_a_batch_does_not_wait_for_nobody() -> None:
    batcher = Batcher(doubled, batch=3, wait=60.0, queue=9, coming=lambda: 2)
    (first,) = batcher.ask("a", [1])
    time.sleep(0.02)
    assert not first.done()  # another is on the way
    assert [one.result(10) for one in [first, *batcher.ask("a", [2])]] == [2, 4]
    assert batcher.stop(5)


def test_an_error_reaches_those_who_asked_and_no_others() -> None:
    batcher = Batcher(doubled, batch=1, wait=0.0, queue=10)
    bad, good = batcher.ask("a", [13, 4])
    with pytest.raises(ValueError, match="unlucky"):
        bad.result(10)
    assert good.result(10) == 8 and batcher.stop(5)


def test_a_queue_takes_all_questions_of_a_request_or_none() -> None:
    go = threading.Event()

    def work(group: Hashable, asked: Sequence[int]) -> list[int]:
        assert go.wait(10)
        return doubled(group, asked)

    batcher = Batcher(work, batch=1, wait=0.0, queue=3)
    taken = batcher.ask("a", [1])
    while batcher.waiting:
        time.sleep(0.001)
    taken += batcher.ask("a", [2, 3])
    with pytest.raises(QueueFull):
        batcher.ask("a", [4, 5])
    assert batcher.waiting == 2
    assert taken[1].cancel()  # whoever asked has left
    go.set()
    assert batcher.stop(5) and taken[2].result(0) == 6


@settings(max_examples=25)
@given(st.integers(1, 400), st.sampled_from([0.01, 0.05, 0.1, 0.5]), st.integers(0, 300))
def test_the_band_is_that_of_the_beta_binomial_law(images: int, share: float, count: int) -> None:
    law = (
        betabinom(images, share * (count + 1), (1 - share) * (count + 1))
        if count
        else binom(images, share)
    )
    low, high = band(images, share, count)
    assert law.cdf(low - 1) <= LEVEL / 2 + 1e-9 and law.cdf(low) > LEVEL / 2 - 1e-9
    assert law.cdf(high) >= 1 - LEVEL / 2 - 1e-9 and law.cdf(high - 1) < 1 - LEVEL / 2 + 1e-9


def test_drift_looks_back_over_a_window() -> None:
    counter = DriftCounter(0.05, 500)
    for number in range(FEWEST):
        assert counter.look().state == "too few"
        counter.count(number % 20 == 0)
    assert counter.look().state == "as calibrated"
    for _ in range(WINDOW):
        counter.count(True)
    found = counter.look()
    assert found.state == "more foreign" and WINDOW <= found.images < WINDOW + 51
    for _ in range(2 * WINDOW):
        counter.count(False)
    assert counter.look().state == "fewer foreign"
    assert DriftCounter(None).look().state == "unknown"


@pytest.mark.parametrize("images", [19, 58, 2000])
def test_drift_expects_what_a_threshold_flags(images: int) -> None:
    """Thresholds of many draws of calibration images, and what they flag of new ones."""
    generator = np.random.default_rng(images)
    shares, outside, draws = [], 0, 200
    for _ in range(draws):
        sketch = Sketch.of(generator.normal(size=images))
        share = flagged_share(sketch, sketch.threshold(0.95))
        counter = DriftCounter(share, images)
        flagged = generator.normal(size=WINDOW) > sketch.threshold(0.95)
        for one in flagged:
            counter.count(bool(one))
        shares.append(flagged.mean() - share)
        outside += counter.look().state != "as calibrated"
    error = np.std(shares) / draws**0.5
    assert abs(np.mean(shares)) < 4 * error
    assert outside <= 4  # LEVEL of 200 is 0.2; five or more have a chance of 2e-6


def test_keys_are_kept_as_hashes_and_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.txt"
    first = add_key(path, "a")
    assert first not in path.read_text() and path.stat().st_mode & 0o077 == 0
    keys = KeyFile(path)
    assert keys.owner(first) == "a" and keys.owner(first + "x") is None and keys.owner("") is None
    second = add_key(path, "b")
    assert keys.owner(second) == "b"
    path.write_text(path.read_text().splitlines()[1] + "\n")
    assert keys.owner(first) is None and keys.owner(second) == "b"
    path.write_text("damaged\n")
    with caplog.at_level("WARNING", "focoop.serve"):
        assert keys.owner(second) == "b"  # a broken file opens no door and closes none
    assert "the keys stay as they were" in caplog.text and "line 1" in caplog.text
    with pytest.raises(ConfigError, match="line 1"):
        KeyFile(path)
    for name in ("a b", "", "x" * 65):
        with pytest.raises(ConfigError, match="cannot be called"):
            add_key(tmp_path / "more.txt", name)
    add_key(tmp_path / "more.txt", "a")
    with pytest.raises(ConfigError, match="already"):
        add_key(tmp_path / "more.txt", "a")
    with pytest.raises(ConfigError, match="--add-key"):
        KeyFile(tmp_path / "absent.txt")


def test_the_last_key_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    first = add_key(path, "a")
    keys, line = KeyFile(path), path.read_text()
    path.write_text("# nobody\n")
    assert keys.owner(first) is None
    path.write_text("# somebody\n" + line.rstrip())  # as an editor leaves it, without an end
    second = add_key(path, "b")
    assert keys.owner(first) == "a" and keys.owner(second) == "b"
    path.unlink()
    assert keys.owner(first) is None and keys.owner("") is None


def test_limits_that_cannot_work_are_refused() -> None:
    for given_limits in (
        {"batch": 0},
        {"images": 9, "queue": 8},
        {"formats": ("SVG",)},
        {"pixels": 0},
    ):
        with pytest.raises(ConfigError):
            Limits(**given_limits)  # type: ignore[arg-type]


def test_loopback() -> None:
    assert is_loopback("127.8.8.8") and not is_loopback("localhost.evil.example")

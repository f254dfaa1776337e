"""Differential privacy: the accountant against integrals and exact answers, the client by hand."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from focoop.config.loading import load
from focoop.config.schema import PrivacyConfig
from focoop.errors import ConfigError
from focoop.experiments.running import run_experiment
from focoop.federation.client import LocalSettings
from focoop.federation.participation import Schedule
from focoop.federation.simulator import MemoryStore, RoundResult, simulate
from focoop.federation.updates.differential_privacy import (
    ORDERS,
    WHOLE_ORDERS,
    Privacy,
    SecretNormal,
    add_noise,
    clip_change,
    composed,
    drawn_rdp,
    epsilon,
    gaussian_rdp,
    log_binomial,
    log_sum_exp,
)
from focoop.methods.base import ClientUpdate, Server
from focoop.methods.promptfl import PromptFL
from focoop.runs import start as begin
from focoop.runs.manifest import collect
from focoop.seeds import torch_generator
from tests.methods.contract_toy import make_clients, make_task, spread
from tests.toy_setting import write_setting


def divergence(order: float, share: float, multiplier: float, *, swapped: bool = False) -> float:
    """Renyi divergence of (1 - q) N(0, z^2) + q N(1, z^2) from N(0, z^2), by quadrature."""
    plain, moved = stats.norm(0, multiplier), stats.norm(1, multiplier)

    def integrand(x: float) -> float:
        mixed = math.log((1 - share) * plain.pdf(x) + share * moved.pdf(x))
        top, bottom = (plain.logpdf(x), mixed) if swapped else (mixed, plain.logpdf(x))
        return math.exp(order * top + (1 - order) * bottom)

    reach = order + 12 * multiplier
    total, _ = integrate.quad(integrand, -reach, reach, limit=400, epsabs=0, epsrel=1e-10)
    return math.log(total) / (order - 1)


def sampled_gaussian_rdp(order: int, share: float, multiplier: float) -> float:
    """Order a of (1 - q) N(0, z^2) + q N(1, z^2) from N(0, z^2), whole a > 1 (Mironov et al. 2019).

    For clients drawn one by one with probability q whose noised sum alone is seen:
    log sum_k (a over k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 z^2)) / (a - 1).
    """
    if share >= 1:
        return gaussian_rdp(order, multiplier)
    terms = (
        log_binomial(order, k)
        + (order - k) * math.log1p(-share)
        + k * math.log(share)
        + (k * k - k) / (2 * multiplier**2)
        for k in range(order + 1)
    )
    return log_sum_exp(terms) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 2, 8])
def test_gaussian_divergence_is_its_integral(order: float) -> None:
    assert gaussian_rdp(order, 1.3) == pytest.approx(divergence(order, 1.0, 1.3), rel=1e-7)


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("order", [2, 5, 12])
def test_sampled_gaussian_divergence_is_its_integral(order: int, share: float) -> None:
    found = sampled_gaussian_rdp(order, share, 1.1)
    assert found == pytest.approx(divergence(order, share, 1.1), rel=1e-6)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("order", [2, 3, 6])
def test_bound_without_replacement_holds_where_all_others_are_zero(
    order: int, share: float
) -> None:
    bound = drawn_rdp(order, share, lambda a: gaussian_rdp(a, 1.5))
    for swapped in (False, True):
        assert divergence(order, share, 1.5, swapped=swapped) <= bound * (1 + 1e-9)
    assert bound <= gaussian_rdp(order, 1.5)


def test_bound_without_replacement_falls_with_the_square_of_the_share() -> None:
    small, smaller = (drawn_rdp(2, q, lambda a: gaussian_rdp(a, 2.0)) for q in (1e-3, 1e-4))
    assert small / smaller == pytest.approx(100, rel=1e-3)


def exact_gaussian_epsilon(multiplier: float, rounds: int, delta: float) -> float:
    """Rounds of a Gaussian mechanism are one with mu = sqrt(T) / z (Balle and Wang 2018)."""
    mu = math.sqrt(rounds) / multiplier

    def excess(eps: float) -> float:
        left = stats.norm.cdf(mu / 2 - eps / mu)
        right = math.exp(eps + stats.norm.logcdf(-mu / 2 - eps / mu))
        return float(left - right - delta)

    return float(optimize.brentq(excess, 0.0, 300.0))


@pytest.mark.parametrize(("multiplier", "rounds"), [(0.5, 1), (1.0, 1), (1.0, 25), (8.0, 25)])
def test_epsilon_bounds_the_exact_one_closely(multiplier: float, rounds: int) -> None:
    found = epsilon({a: rounds * gaussian_rdp(a, multiplier) for a in ORDERS}, 1e-5)
    exact = exact_gaussian_epsilon(multiplier, rounds, 1e-5)
    assert exact <= found <= 1.15 * exact + 0.05


@pytest.mark.parametrize(
    ("multiplier", "rounds", "share", "expected"),
    [
        (1.0, 25, 1.0, 35.071768),
        (4.0, 25, 1.0, 6.158978),
        (1.0, 100, 0.1, 7.972922),
        (2.0, 200, 0.01, 0.315875),
    ],
)
def test_epsilon_is_that_of_an_established_accountant(
    multiplier: float, rounds: int, share: float, expected: float
) -> None:
    # Made with dp-accounting 0.6.0: RdpAccountant(ORDERS), Poisson sampling, delta 1e-5.
    orders = ORDERS if share == 1.0 else WHOLE_ORDERS
    costs = {
        a: rounds
        * (
            gaussian_rdp(a, multiplier)
            if share == 1.0
            else sampled_gaussian_rdp(int(a), share, multiplier)
        )
        for a in orders
    }
    assert epsilon(costs, 1e-5) == pytest.approx(expected, abs=1e-6)


def test_spent_is_the_gaussian_of_half_the_multiplier_and_more_rounds_cost_more() -> None:
    privacy = Privacy(clip=1.0, noise=4.0, secret_draw=True)
    found = privacy.spent(busiest=5, rounds=50, share=0.1)
    assert found["epsilon"] >= exact_gaussian_epsilon(2.0, 5, 1e-5)
    assert found["epsilon"] < privacy.spent(6, 50, 0.1)["epsilon"]
    outside = epsilon(
        {a: 50 * drawn_rdp(a, 0.1, lambda b: gaussian_rdp(b, 2.0)) for a in WHOLE_ORDERS}, 1e-5
    )
    assert found["epsilon_outside"] == min(outside, found["epsilon"])
    assert "epsilon_outside" not in privacy.spent(5, 5, 1.0)
    assert Privacy(clip=1.0).spent(5, 5, 0.5) == {}
    # Whoever knows the seed knows who took part: then drawing hides nobody.
    assert set(Privacy(clip=1.0, noise=4.0).spent(5, 50, 0.1)) == {"epsilon"}


@pytest.mark.parametrize(("noise", "busiest"), [(1.0, 1), (4.0, 25), (16.0, 400)])
def test_epsilon_is_that_of_dp_accounting(noise: float, busiest: int) -> None:
    accounting = pytest.importorskip("dp_accounting")
    relation = accounting.NeighboringRelation.REPLACE_ONE
    oracle = accounting.rdp.RdpAccountant(ORDERS, relation)
    # Replacing a client moves its clipped change by up to 2 S: the multiplier is noise / 2.
    oracle.compose(accounting.GaussianDpEvent(noise / 2), busiest)
    found = Privacy(clip=0.3, noise=noise).spent(busiest, busiest, 1.0)["epsilon"]
    assert found == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-9)
    # Its exact accountant knows that itself: it is told the multiplier of a client added.
    exact = accounting.pld.PLDAccountant(relation, value_discretization_interval=1e-2)
    exact.compose(accounting.GaussianDpEvent(noise), busiest)
    assert 0.85 * found - 0.05 <= exact.get_epsilon(1e-5) <= found * (1 + 1e-2)


@pytest.mark.parametrize(("clients", "sampled"), [(10, 1), (10, 5), (1000, 10)])
def test_epsilon_outside_is_no_less_than_that_of_dp_accounting(clients: int, sampled: int) -> None:
    accounting = pytest.importorskip("dp_accounting")
    oracle = accounting.rdp.RdpAccountant(WHOLE_ORDERS, accounting.NeighboringRelation.REPLACE_ONE)
    one = accounting.GaussianDpEvent(4.0)
    oracle.compose(accounting.SampledWithoutReplacementDpEvent(clients, sampled, one), 50)
    privacy = Privacy(clip=1.0, noise=8.0, secret_draw=True)
    found = privacy.spent(50, 50, sampled / clients)
    # Its bound uses that the noise is Gaussian, ours holds for any mechanism; and drawing never
    # tells more than taking part every time.
    least = min(oracle.get_epsilon(1e-5), found["epsilon"])
    assert least <= found["epsilon_outside"] <= 2 * least


def test_the_share_is_that_of_the_clients_drawn() -> None:
    """K = 10 and a participation of 0.05 draw one client in ten, not one in twenty."""
    privacy = Privacy(clip=1.0, noise=8.0, secret_draw=True)
    results = run(privacy, clients=10, participation=0.05, rounds=2)
    assert [len(one.participants) for one in results] == [1, 1]
    turns = max(sum(k in one.participants for one in results) for k in range(10))
    told = results[-1].server.report["epsilon_outside"]
    assert told == privacy.spent(turns, 2, 0.1)["epsilon_outside"]
    assert told > privacy.spent(turns, 2, 0.05)["epsilon_outside"]
    # The numbers of the report that found it: 1.24 was told, 2.60 is true.
    assert privacy.spent(50, 50, 0.1)["epsilon_outside"] == pytest.approx(2.60, abs=0.01)


def test_unequal_releases_add_up() -> None:
    assert composed([4.0] * 7, 1e-5) == Privacy(clip=1, noise=4.0).spent(7, 7, 1.0)["epsilon"]
    # Independent Gaussians: 1 / z^2 adds up, so 3 and 4 cost as much as one of 12 / 5.
    assert composed([3.0, 4.0], 1e-5) == pytest.approx(composed([2.4], 1e-5))


def test_noised_counts_cost_once() -> None:
    privacy = Privacy(counts="noised", count_noise=10.0)
    found = privacy.spent(1, 1, 1.0)
    assert found == privacy.spent(9, 9, 1.0)
    exact = exact_gaussian_epsilon(10.0 / math.sqrt(2), 1, 1e-5)
    assert exact <= found["epsilon_counts"] <= 1.15 * exact


def make_update(scale: float = 1.0) -> tuple[dict[str, torch.Tensor], ClientUpdate]:
    generator = torch_generator(0, "update")
    received = {"a": torch.randn(4, 3, generator=generator), "w": torch.arange(3)}
    change = scale * torch.randn(4, 3, generator=generator)
    shared = {"a": received["a"] + change, "w": received["w"]}
    return received, ClientUpdate(7, shared, 23, torch.tensor([11, 0, 12]), 0.7)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-2, 10.0))
def test_clipping_keeps_the_direction_and_bounds_the_length(scale: float, bound: float) -> None:
    received, update = make_update(scale)
    clipped = clip_change(update.shared, received, bound)
    before = (update.shared["a"] - received["a"]).double()
    after = (clipped["a"] - received["a"]).double()
    assert float(after.norm()) == pytest.approx(min(bound, float(before.norm())), rel=1e-3)
    cosine = float((before * after).sum() / (before.norm() * after.norm()))
    assert cosine == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(clipped["w"], received["w"])


def test_noise_is_gaussian_of_the_wanted_deviation() -> None:
    zeros = {"b": torch.zeros(100, 100), "a": torch.zeros(50, 200), "w": torch.arange(3)}
    noised = add_noise(zeros, 0.25, torch_generator(3, "noise"))
    drawn = torch.cat([noised["a"].flatten(), noised["b"].flatten()]).double().numpy()
    assert stats.kstest(drawn / 0.25, "norm").pvalue > 1e-3
    assert abs(stats.pearsonr(drawn[:10000], drawn[10000:]).statistic) < 0.05
    assert torch.equal(noised["w"], zeros["w"])


def release(privacy: Privacy, seed: int = 0) -> ClientUpdate:
    received, update = make_update()
    return privacy.release(
        update, received, torch_generator(seed, "privacy"), torch_generator(0, "counts")
    )


def test_counts_leave_as_asked() -> None:
    assert release(Privacy()).class_counts.tolist() == [11, 0, 12]
    rounded = release(Privacy(counts="rounded", count_step=10))
    assert (rounded.class_counts.tolist(), rounded.num_examples) == ([20, 0, 20], 40)
    nothing = release(Privacy(counts="none"))
    assert (nothing.class_counts.tolist(), nothing.num_examples) == ([1, 1, 1], 3)
    noised = [release(Privacy(counts="noised", count_noise=4.0), seed) for seed in range(2)]
    assert noised[0].class_counts.tolist() == noised[1].class_counts.tolist()  # one draw for all
    assert noised[0].class_counts.tolist() != [11, 0, 12]
    assert noised[0].num_examples == int(noised[0].class_counts.sum())
    close = release(Privacy(counts="noised", count_noise=1e-9))
    assert close.class_counts.tolist() == [11, 0, 12]
    lost = Privacy(counts="noised", count_noise=0.1).release_counts(
        torch.zeros(4, dtype=torch.int64), torch_generator(0, "counts")
    )
    assert lost.sum() == 1  # a client with images is never left out for its noise


def test_noise_differs_by_round_and_the_loss_stays_home() -> None:
    privacy = Privacy(clip=0.5, noise=1.0)
    first, second = release(privacy, 1), release(privacy, 2)
    assert not torch.equal(first.shared["a"], second.shared["a"])
    assert math.isnan(first.loss)
    assert release(Privacy(clip=0.5)).loss == 0.7


def test_secret_noise_is_normal_and_its_keys_own() -> None:
    key, other = (bytes([k]) * 32 for k in (1, 2))
    drawn = SecretNormal(key).draw((100, 200)).flatten().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(stats.pearsonr(drawn[:10000], drawn[10000:]).statistic) < 0.05
    source = SecretNormal(key)
    first, second = source.draw((20000,)).numpy(), source.draw((20000,)).numpy()
    assert (first == drawn).all()
    for unlike in (second, SecretNormal(other).draw((20000,)).numpy()):
        assert abs(stats.pearsonr(first, unlike).statistic) < 0.05
    assert SecretNormal(key).draw(()).shape == ()
    with pytest.raises(ValueError, match="32 bytes"):
        SecretNormal(b"short")


def test_an_empty_client_is_released_as_any_other() -> None:
    received, _ = make_update()
    empty = ClientUpdate(3, received, 0, torch.zeros(3, dtype=torch.int64), math.nan)
    sources = torch_generator(0, "privacy"), torch_generator(0, "counts")
    sent = Privacy(clip=0.5, noise=2.0, counts="none").release(empty, received, *sources)
    change = (sent.shared["a"] - received["a"]).double()
    assert float(change.std()) == pytest.approx(1.0, rel=0.6)  # 12 numbers
    assert (sent.class_counts.tolist(), sent.num_examples) == ([1, 1, 1], 3)
    assert math.isnan(sent.loss)
    plain = Privacy(clip=0.5, counts="none").release(empty, received, *sources)
    assert plain is empty  # without noise its tensors tell that it has no images


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set privacy\.clip too"):
        PrivacyConfig(noise=1.0)


def run(
    privacy: Privacy | None,
    resume: tuple[int, Server] | None = None,
    *,
    clients: int = 4,
    participation: float = 0.5,
    rounds: int = 3,
) -> list[RoundResult]:
    method = PromptFL(PromptFL.Config(context_tokens=2))
    task = make_task(method)
    images = make_clients(method, task, spread([6, 5, 4, 7] if clients == 4 else [3] * clients))
    schedule = Schedule(rounds, participation, LocalSettings(1, 4, 0.1), privacy=privacy)
    return list(simulate(method, task, images, schedule, MemoryStore(), seed=1, resume=resume))


def test_the_simulator_clips_reports_epsilon_and_resumes_to_the_bit() -> None:
    privacy = Privacy(clip=1e-3, noise=2.0)
    whole = run(privacy)
    tail = run(privacy, resume=(2, whole[1].server))
    assert torch.equal(whole[-1].server.shared["context"], tail[-1].server.shared["context"])
    assert dict(whole[-1].server.report) == dict(tail[-1].server.report)
    turns = [sum(k in r.participants for r in whole) for k in range(4)]
    expected = privacy.spent(max(turns), 3, 0.5)
    assert dict(whole[-1].server.report) == pytest.approx(expected)
    costs = [r.server.report["epsilon"] for r in whole]
    assert costs == sorted(costs)


def test_a_bound_that_never_binds_changes_no_bit() -> None:
    plain, clipped = run(None), run(Privacy(clip=1e9))
    assert plain[-1].loss == clipped[-1].loss
    context = plain[-1].server.shared["context"]
    assert torch.equal(context, clipped[-1].server.shared["context"])


def test_a_run_keeps_what_was_refused_summed_and_spent(tmp_path: Path) -> None:
    file = write_setting(tmp_path)
    told = {
        "robust": (["robust.rule=median"], {"refused"}),
        "noise": (["privacy.clip=1", "privacy.noise=2", "privacy.counts=none"], {"epsilon"}),
        "sums": (
            ["privacy.secure_sum=true", "privacy.counts=rounded", "partition.clients=3"],
            {"summed"},
        ),
    }
    for name, (changes, expected) in told.items():
        settings = load(file, ["method.name=promptfl", *changes])
        with begin(tmp_path / name, settings, collect(settings), resume=False) as folder:
            line = run_experiment(settings, folder)
        assert set(line["server"]) == expected
        each = [entry["server"] for entry in folder.manifest["rounds"][1:]]
        assert [set(one) for one in each] == [expected] * settings.federation.rounds
        assert (line["loss"] is None) == (name == "noise")

"""Attacks of a coordinator and of a site on a running federation, each party a host of its own.

Every attack once worked. The parties are processes of focoop's own commands in network namespaces,
with TLS between them; the dishonest ones do what they like with their own software and keys
(`besieged.py`). An outsider's attacks are in `test_attack_port.py`. What each attacker got is told
in docs/reliability/threat-model.md.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from safetensors.torch import load
from torch import Tensor

from focoop.config.schema import RunConfig
from focoop.features.storage import write_file
from focoop.federation.updates.differential_privacy import ORDERS, WHOLE_ORDERS, clip_change
from focoop.flower import in_process
from focoop.flower.journal import events
from focoop.flower.parcel import BYTES, PARCEL
from focoop.flower.records import UPDATE, to_tensor
from focoop.flower.server.spares import Draw
from focoop.flower.site import client_app
from focoop.flower.site.releases import LEDGER
from focoop.flower.sum_records import OPEN, SHARES
from focoop.runs import RunFolder
from focoop.scenario.schedule import client_privacy
from tests.flower.besieged import NAMES, PATIENT, Besieged, besieged, key, order, study
from tests.flower.dishonest import CALLED, LYING_ROUNDS, Answer
from tests.flower.federations import opened, state
from tests.flower.foul_sums import CHEATS, Sum
from tools.flower_hosts import separable

pytestmark = [pytest.mark.slow, pytest.mark.flower]
HELLO, TRAIN, EVALUATE = "query.hello", "train", "evaluate"
OPEN_POLICY = ""  # every bound at its default, and no run agreed upon: the attacker's best case


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    """The federation, with its coordinator's study waiting to be led."""
    if not separable():
        pytest.skip("network namespaces need root and iproute2's `ip`")
    with besieged(tmp_path_factory.mktemp("besieged")) as made:
        made.open()
        yield made


def tensors(answer: Answer) -> dict[str, Tensor]:
    """The shared tensors of an update."""
    assert answer.content is not None, answer.error
    record = answer.content[UPDATE]
    assert isinstance(record, ArrayRecord)
    return {name: to_tensor(name, array) for name, array in record.items()}


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0))


# --- row 2: noise that cancels -------------------------------------------------------------------


def noised(noise: float) -> RunConfig:
    return study(f"privacy.noise={noise}", "privacy.clip=1.0")


def clipped(fed: Besieged, received: dict[str, Tensor]) -> Tensor:
    """What the noise hides: ghent's change in round 1, shortened to length 1."""
    config = study()
    grid = in_process.InProcessGrid([client_app.app], {**fed.settings(config), "sites": len(NAMES)})
    grid.contexts[0].node_config.update({"data": f"file:{fed.data['ghent']}"})
    told = order(config, 1, key(), received)
    message = Message(told, in_process.FIRST_NODE, TRAIN, ttl=60.0)
    (reply,) = grid.send_and_receive([message])
    exact = tensors(Answer(reply.content))
    return clip_change(exact, received, 1.0)["context"] - received["context"]


def num_released(fed: Besieged) -> int:
    """Releases that ghent has counted."""
    ledger = fed.state("ghent") / LEDGER
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


def test_row_2_a_round_asked_for_twice_is_released_once(fed: Besieged) -> None:
    weak, strong, known = noised(4.0), noised(8.0), key()
    received = fed.first(weak)
    other = {"context": received["context"] + 1}
    hidden, released = clipped(fed, received), num_released(fed)
    with fed.run(strong) as hand:  # the run agreed upon has no noise: the site's own file says so
        refused = hand.ask("ghent", TRAIN, order(strong, 1, known, received))
        assert refused.error == "policy: privacy.clip = 1.0 differs from the run agreed upon (0.0)"
    with fed.policy(OPEN_POLICY, "ghent"):
        with fed.run(weak) as hand:
            first = tensors(hand.ask("ghent", TRAIN, order(weak, 1, known, received)))
        with fed.run(strong) as hand:
            again = hand.ask("ghent", TRAIN, order(strong, 1, known, received))
            assert again.content is None and "released updates of this federation" in again.error
            lied = hand.ask("ghent", TRAIN, order(weak, 1, known, received))  # under weak's name
            assert lied.content is None and "the server as" in lied.error
            fresh = tensors(hand.ask("ghent", TRAIN, order(strong, 1, key(), received)))
        # The coordinator stops, an image is mended, and the run goes on.
        with fed.other_images("ghent", fed.images("ghent", mended=3)), fed.run(weak) as hand:
            same = hand.ask("ghent", TRAIN, order(weak, 1, known, received))
            changed = hand.ask("ghent", TRAIN, order(weak, 1, known, other))
            new = key()  # two questions about a round that nobody has answered yet
            both = [(TRAIN, order(weak, 1, new, one)) for one in (received, other)]
            answered = [one for one in hand.ask_all("ghent", both) if one.content is not None]
            early = hand.ask("ghent", TRAIN, order(weak, 0, known, received))
    assert torch.equal(tensors(same)["context"], first["context"])
    assert changed.content is None and "answered round 1 for other prompts" in changed.error
    assert len(answered) == 1
    assert early.content is None and "round 0 is over" in early.error
    # What two runs released cancels nothing: once (8 a - 4 b) / 4 was the hidden change.
    a, b = (one["context"] - received["context"] for one in (first, fresh))
    assert abs(cosine((8 * a - 4 * b) / 4, hidden)) < 0.1  # unrelated: 0.018 by chance
    assert num_released(fed) == released + 3


# --- row 3: means that are withheld --------------------------------------------------------------

MEASURED = ("means", "moment", "mean_weight", "spread_weight", "sent_weight")


def test_row_3_chosen_means_tell_nothing_of_a_withheld_class(fed: Besieged) -> None:
    """lille has one image of class 0: whichever it is, not a bit that is measured changes."""
    config = study("method.name=focoop_plus")
    plain = fed.first(config, "lille")
    far = plain["means"].clone()
    far[0, 0] = 1e6
    with fed.policy(OPEN_POLICY, "lille"), fed.run(config) as hand:

        def sent(means: Tensor) -> dict[str, Tensor]:
            told = order(config, 1, key(), {**plain, "means": means})
            return tensors(hand.ask("lille", TRAIN, told))

        before = {name: sent(means) for name, means in (("far", far), ("plain", plain["means"]))}
        with fed.other_images("lille", fed.images("lille", mended=0)):
            after = sent(far)
    assert set(after) == set(MEASURED)
    for name in MEASURED:
        assert torch.equal(before["far"][name], after[name]), name
    # The class is as the coordinator sent it, and a far mean of it moves no second moment.
    assert torch.equal(after["means"][0], far[0]) and not after["mean_weight"][0].any()
    assert torch.equal(before["far"]["moment"], before["plain"]["moment"])
    assert after["mean_weight"][1:].all() and after["spread_weight"].all()  # others are told


# --- row 5: orders against a site's policy -------------------------------------------------------

STRICT = "[privacy]\nnoise_at_least = 1.0\nclip_at_most = 1.0\n"
QUIET = ("privacy.noise=1.0", "privacy.clip=1.0")


def orders_against(fed: Besieged) -> Iterator[tuple[RunConfig, dict[str, Any], str]]:
    """Settings that a site must refuse: as a configuration, what no configuration may hold, why."""
    home = fed.folder / "ghent"  # any folder of the site
    cannot = "settings: it cannot run with these settings; its log says why"
    yield study(), {}, "policy: privacy.noise = 0, 1 is the least"
    files = "names files of this site, which its policy does not open"
    yield study(*QUIET, f"data.ood=['folder:{home}']"), {}, f"policy: data.ood {files}"
    yield study(*QUIET), {"config": str(home / "own.toml")}, f"policy: config {files}"
    yield study(*QUIET), {"sites": 10**9}, cannot  # lists as long would take all its memory
    # What no configuration of this version may hold: contexts that would fill the memory.
    yield study(*QUIET, "method.name=focoop"), {"method.context-tokens": 10**7}, cannot
    epochs = "policy: federation.epochs = 10000, and 50 is the most"
    yield study(*QUIET, "federation.epochs=10000"), {}, epochs


def test_row_5_a_site_keeps_to_its_policy_and_says_so(fed: Besieged) -> None:
    received = fed.first(study())
    sent = len(fed.noted("ghent", "sent"))
    with fed.policy(STRICT, "ghent"):
        for config, others, reason in orders_against(fed):
            about = order(config, 1, key(), received)
            with fed.run(config, others) as hand:
                messages = [(kind, about) for kind in (HELLO, TRAIN, EVALUATE)]
                found = hand.ask_all("ghent", messages)
            assert [one.error for one in found] == [reason] * len(messages)
            assert all(one.content is None for one in found)
        refused = [one["reason"] for one in fed.noted("ghent", "refused")]
        assert len(fed.noted("ghent", "sent")) == sent
    command = [sys.executable, "-m", "focoop", "site", "status", "--state", str(fed.state("ghent"))]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "refused: round 1: policy: federation.epochs = 10000" in shown.stdout, shown
    assert refused[-3:] == ["policy: federation.epochs = 10000, and 50 is the most"] * 3


# --- row 6: who takes part -----------------------------------------------------------------------


def test_row_6_participants_do_not_follow_from_the_seed_and_cost_their_true_share(
    fed: Besieged,
) -> None:
    accounting = pytest.importorskip("dp_accounting")
    rounds, noise = 9, 8.0
    config = study(
        f"privacy.noise={noise}",
        "privacy.clip=1.0",
        "privacy.secret_draw=true",
        "federation.participation=0.1",  # a tenth of three is one: a third
        f"federation.rounds={rounds}",
        "federation.evaluate_every=0",
    )
    with fed.policy(OPEN_POLICY, "ghent", "lille"), fed.run(config) as hand:
        assert hand.be_honest() == "", fed.told()
    folder = fed.folder / "fed" / "other"
    entries = RunFolder.open(folder).manifest["rounds"][1:]
    drawn = [entry["participants"] for entry in entries]
    # mallory knows all settings, the seed among them; she guesses nine of nine once in 19,683.
    guess = [Draw(len(NAMES), 0.1, 0.0, config.seed).clients(r + 1)[0] for r in range(rounds)]
    assert len(drawn) == rounds and guess != drawn
    secret = (folder / "draw.secret").read_bytes().split()[0]  # its checksum follows
    assert drawn == [
        Draw(len(NAMES), 0.1, 0.0, int(secret, 16)).clients(r + 1)[0] for r in range(rounds)
    ]
    for name in NAMES:  # and the secret is in nothing that a site has
        files = [path for path in (fed.folder / name).rglob("*") if path.is_file()]
        assert files and not any(secret in path.read_bytes() for path in files)
    turns = max(sum(k in one for one in drawn) for k in range(len(NAMES)))
    told = entries[-1]["server"]
    relation = accounting.NeighboringRelation.REPLACE_ONE
    inside = accounting.rdp.RdpAccountant(ORDERS, relation)
    inside.compose(accounting.GaussianDpEvent(noise / 2), turns)
    assert told["epsilon"] == pytest.approx(inside.get_epsilon(config.privacy.delta), rel=1e-9)
    outside = accounting.rdp.RdpAccountant(WHOLE_ORDERS, relation)
    event = accounting.GaussianDpEvent(noise / 2)
    outside.compose(accounting.SampledWithoutReplacementDpEvent(len(NAMES), 1, event), rounds)
    least = min(outside.get_epsilon(config.privacy.delta), told["epsilon"])
    assert least <= told["epsilon_outside"] <= 2 * least
    privacy = client_privacy(config)
    assert privacy is not None
    # What was told once, of a tenth.
    assert privacy.spent(turns, rounds, 0.1)["epsilon_outside"] < least


# --- row 7: secure sums --------------------------------------------------------------------------


def test_row_7_a_sum_of_two_and_keys_of_nobody_get_no_share(fed: Besieged) -> None:
    config = study("privacy.secure_sum=true")
    with fed.policy(OPEN_POLICY, "ghent", "lille"), fed.run(config) as hand:
        fair = Sum(fed, hand, config)
        shares = fair.ask("ghent", SHARES, fair.told())  # a fair sum is shared, and the sites meet
        assert shares.content is not None, shares.error
        # Then lille is said to have gone: the sum would be of ghent and mallory.
        package = {"package/2": fair.mallory.share(fair.everyone)[0]}
        two = fair.ask("ghent", TRAIN, package)
        open_two = fair.ask("ghent", OPEN, {"answered": [0, 2]})
        assert two.content is None and "2 clients are left" in two.error
        assert open_two.content is None and "2 sites, and 3 are the least" in open_two.error
        foul = Sum(fed, hand, config)
        for change, reason in CHEATS:
            told = foul.told()
            change(foul, told)
            answer = foul.ask("ghent", SHARES, told)
            assert answer.content is None and answer.error.startswith(reason), answer
        assert foul.ask("ghent", SHARES, foul.told()).content is not None  # and fair it works
    loose = {"privacy.threshold": 0.5}
    with fed.policy(OPEN_POLICY, "ghent"), fed.run(config, loose) as hand:
        half = hand.ask("ghent", HELLO, order(config, 1, key()))
        assert half.error == "settings: it cannot run with these settings; its log says why"


# --- rows 4 and 8: what a site may send, and what may leave one ----------------------------------


def renamed(features: bytes, old: str, new: str) -> bytes:
    """A feature file with another name of a class, its checksums right."""
    tensors, metadata = load(features), dict(features_metadata(features))
    metadata["classes"] = metadata["classes"].replace(old, new)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        write_file(path, tensors, metadata)
        return path.read_bytes()


def features_metadata(features: bytes) -> dict[str, str]:
    """The texts in the head of a safetensors file."""
    length = int.from_bytes(features[:8], "little")
    found: dict[str, str] = json.loads(features[8 : 8 + length])["__metadata__"]
    return found


def test_row_8_no_name_of_a_file_or_a_class_reaches_the_coordinator(fed: Besieged) -> None:
    whole, received = fed.data["ghent"].read_bytes(), fed.first(study())
    kinds = (HELLO, TRAIN, EVALUATE)
    for content in (b"torn", renamed(whole, "beaver", "tumour")):
        messages = [(kind, order(study(), 1, key(), received)) for kind in kinds]
        with fed.other_images("ghent", content):
            found = fed.study.ask_all("ghent", messages)
        told = "images: its images cannot be used; its log says why"
        assert [one.error for one in found] == [told] * len(kinds)
    parcel = RecordDict({PARCEL: ConfigRecord({BYTES: b"torn"})})
    torn = fed.study.ask("ghent", TRAIN, parcel)
    assert torn.error == "the message holds no order"
    reasons = str(fed.noted("ghent", "failed"))
    assert PATIENT in reasons and "tumour" in reasons  # the site's own people can read it
    for path in (fed.folder / "fed").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert PATIENT.encode() not in content and b"tumour" not in content, path


def test_row_8_sites_hear_that_a_run_failed_and_nothing_of_each_other(fed: Besieged) -> None:
    """mallory lies, the coordinator needs all three sites, and its run fails."""
    config = study("federation.evaluate_every=0")
    others = {"quorum": 1.0, "out": str(fed.folder / "fed" / "failed")}
    with fed.policy(OPEN_POLICY, "ghent", "lille"), fed.run(config, others) as hand:
        error = hand.be_honest()
    assert "round 1 has 2 updates of 3 needed (mallory: context is not" in error
    for name in ("ghent", "lille"):
        (failed,) = fed.noted(name, "run failed")
        assert failed["reason"] == "round 1 has 2 updates of 3 needed"


def absent(message: Message, context: Context) -> Message:
    """mallory, had she stayed at home."""
    if message.metadata.message_type == HELLO:
        return client_app.app(message, context)
    raise RuntimeError("away")


def test_rows_4_and_8_a_site_that_lies_is_left_out_by_name_and_changes_no_bit(
    fed: Besieged, tmp_path: Path
) -> None:
    """The last test: the study itself is run, by focoop's own server."""
    assert fed.study.be_honest() == "", fed.told()
    run = RunFolder.open(fed.folder / "fed" / "run")
    assert run.status == "finished" and run.last_round() == LYING_ROUNDS
    entries = {entry["round"]: entry for entry in run.manifest["rounds"]}
    for (step, number), reason in CALLED.items():
        told = entries[number]["refused" if step == TRAIN else "not_evaluated"]
        assert list(told) == ["mallory"] and told["mallory"].startswith(reason), told
    left_out = [
        one["site"]
        for one in events(fed.folder / "fed" / "run-flower" / "journal.jsonl")
        if one["event"] == "left out"
    ]
    assert left_out == ["mallory"] * len(CALLED)
    nodes = [{"data": f"file:{fed.data[name]}", "policy": opened(tmp_path)} for name in NAMES]
    answers = [client_app.app, client_app.app, absent]
    told = {"classes": fed.classes, "sites": len(NAMES)}
    in_process.run(study(), tmp_path / "run", 3, nodes=nodes, answers=answers, **told)  # type: ignore[arg-type]
    assert state(run) == state(RunFolder.open(tmp_path / "run"))

"""A site does what its policy allows and nothing else, and both sides read why."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from focoop.config.loading import load
from focoop.config.writing import config_hash, to_flat, to_toml
from focoop.errors import ConfigError, DataError, FederationError, MethodError
from focoop.features.lookup import save_splits
from focoop.flower import in_process
from focoop.flower.in_process import identify
from focoop.flower.journal import events
from focoop.flower.records import CONFIG, Order
from focoop.flower.settings import SETTINGS as SETTINGS_TEXT
from focoop.flower.settings import server_settings
from focoop.flower.site import client_app, guard
from focoop.flower.site.policy import (
    Policy,
    PolicyFileError,
    Refusal,
    policy_file,
)
from focoop.flower.site.policy_words import default_policy_toml, policy_sentences
from focoop.flower.sum_records import parties_of
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from tests.flower.federations import CLIENTS, toy_config
from tests.toy_setting import CLASSES

SAID = "; ".join(CLASSES)


def refusal(policy: dict[str, Any], *overrides: str, base: Path = Path()) -> str:
    """What a policy says to a run; empty where it is allowed."""
    try:
        Policy.of(policy, base).check(load(None, list(overrides)))
    except Refusal as error:
        return str(error)
    return ""


def test_the_defaults_allow_the_default_run_and_no_folder_of_the_site() -> None:
    assert refusal({}) == ""
    assert refusal({}, "federation.epochs=10000") == (
        "federation.epochs = 10000, and 50 is the most"
    )
    for key in ("data.ood", "data.validation_ood"):
        for spec in ("folder:/home", "file:/etc/x.safetensors", "csv:/srv/list.csv", "clients:."):
            told = refusal({}, f"{key}=['{spec}']")
            assert told == f"{key} names files of this site, which its policy does not open"
    assert "data.ood names hf:somebody/set" in refusal({}, "data.ood=['hf:somebody/set']")
    assert "data.ood names demo:../../x" in refusal({}, "data.ood=['demo:../../x']")
    for key in ("negatives.words", "data.root", "backbone.weights"):
        assert refusal({}, f"{key}=/etc/passwd").startswith(key)
    own = Policy().check(
        load(None, ["data.root=/x", "backbone.weights=/y"]), {"root": "", "weights": ""}
    )
    assert own is None


@pytest.mark.parametrize(
    ("policy", "overrides", "told"),
    [
        (
            {"methods": ["focoop"]},
            ["method.name=promptfl"],
            "the method promptfl (allowed: focoop)",
        ),
        ({"rounds": 5}, ["federation.rounds=6"], "federation.rounds = 6"),
        ({"views": 1}, ["data.views=2"], "data.views = 2"),
        ({"privacy": {"noise_at_least": 1.0}}, [], "privacy.noise = 0, 1 is the least"),
        ({"privacy": {"clip_at_most": 1.0}}, [], "privacy.clip = 0, 1 is the most"),
        ({"privacy": {"clip_at_most": 1}}, ["privacy.clip=2"], "privacy.clip = 2, 1 is the most"),
        ({"privacy": {"secure_sum": True}}, [], "privacy.secure_sum is off"),
        ({"privacy": {"counts": ["none"]}}, [], "privacy.counts = 'exact' (allowed: none)"),
        ({"settings": {"federation.lr": {"most": 1}}}, [], "federation.lr = 3.0 is not allowed"),
        (
            {"settings": {"data.template": ["a {}."]}},
            [],
            "data.template = 'a photo of a {}.' is not allowed",
        ),
        ({"sets": []}, [], "data.ood names demo:dtd_32px"),
    ],
)
def test_each_rule_refuses_what_it_forbids(
    policy: dict[str, Any], overrides: list[str], told: str
) -> None:
    assert told in refusal(policy, *overrides)
    assert refusal({}, *overrides) == ""  # by this rule alone
    assert policy_sentences(Policy.of(policy)) != policy_sentences(
        Policy()
    )  # and people read of it


def test_rules_allow_what_keeps_to_them() -> None:
    strict = {
        "methods": ["promptfl"],
        "privacy": {"noise_at_least": 1, "clip_at_most": 1, "counts": ["none"], "secure_sum": True},
        "settings": {"federation.batch_size": {"least": 8, "most": 64}, "seed": [0, 1]},
    }
    given_ = ["method.name=promptfl", "privacy.noise=2", "privacy.clip=0.5", "privacy.counts=none"]
    assert refusal(strict, *given_, "privacy.secure_sum=true") == ""


def test_folders_are_opened_with_all_inside_and_nothing_beside(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "open" / "link").symlink_to("/etc")
    policy = {"folders": ["open"]}

    def asked(path: str) -> str:
        return refusal(policy, f"data.ood=['folder:{tmp_path}/{path}']", base=tmp_path)

    assert asked("open") == asked("open/inside") == ""
    assert asked("opened") and asked("open/../x") and asked("link") and asked("open/link/x")


def test_a_policy_may_name_the_one_run_it_is_for(tmp_path: Path) -> None:
    agreed = load(None, ["privacy.clip=1.0", "privacy.noise=1.0"])
    (tmp_path / "run.toml").write_text(to_toml(agreed))
    policy = Policy.of({"run": "run.toml"}, tmp_path)
    policy.check(agreed)
    policy.check(replace(agreed, name="again"))
    with pytest.raises(Refusal, match=r"privacy.noise = 0.0 differs .* \(1.0\)"):
        policy.check(load(None, ["privacy.clip=1.0"]))


def test_the_template_is_the_defaults_with_every_key() -> None:
    text = default_policy_toml()
    tree = tomllib.loads(text)
    assert Policy.of(tree) == Policy()
    assert set(tree) == {*Policy.__dataclass_fields__} - {"base"}
    assert tomllib.loads(default_policy_toml("run.toml"))["run"] == "run.toml"
    assert text.count("#") > len(tree)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("epoch = 3", "there is no setting epoch"),
        ("epochs = 'many'", "whole number"),
        ("[privacy]\nnoise = 3", "there is no setting privacy.noise"),
        ("privacy = 3", "tables"),
        ("base = '/'", "no setting base"),
        ("methods = ['focop']", "focoop"),
        ("[settings]\n'federation.epoch' = [1]", "federation.epochs"),
        ("[settings]\n'federation.epochs' = 1", "list of allowed values"),
        ("[privacy]\ncounts = ['no']", "privacy.counts names 'no'"),
        ("epochs = ", "cannot be read"),
    ],
)
def test_a_policy_that_is_none_says_so(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyFileError, match="policy.toml") as error:
        Policy.read(path)
    assert told in str(error.value)
    with pytest.raises(PolicyFileError, match="cannot be read"):
        Policy.read(tmp_path / "none.toml")


def test_the_policy_beside_the_keys_is_found(tmp_path: Path) -> None:
    assert policy_file(None, None) is None and policy_file(None, tmp_path) is None
    (tmp_path / "policy.toml").write_text("")
    assert policy_file(None, tmp_path) == tmp_path / "policy.toml"
    assert policy_file(tmp_path / "other.toml", tmp_path) == tmp_path / "other.toml"


@given(st.integers(1, 8))
def test_secure_sums_of_too_few_are_refused(count: int) -> None:
    keys = {f"{name}/{k}": b"" for k in range(count) for name in ("mask", "channel", "commitment")}
    assert parties_of({**keys, "attempt": "x"}) == count
    assert parties_of({"answered": list(range(count)) * 2}) == count
    assert parties_of({"attempt": "x", "package/3": b""}) is None
    if count < 3:
        with pytest.raises(Refusal, match=f"a secure sum of {count} sites, and 3 are the least"):
            Policy().check_parties(count)
    else:
        Policy().check_parties(count)


def site_nodes(tmp_path: Path, overrides: list[str]) -> list[dict[str, str]]:
    """Three sites with a file of images each."""
    split = make_split(toy_config(tmp_path, *overrides))
    nodes = []
    for k in range(CLIENTS):
        own = {
            "train": split.train.select(split.train_index[k]),
            "test": split.test.select(split.test_index[k]),
        }
        save_splits(tmp_path / f"site{k}.safetensors", own)
        nodes.append({"data": f"file:{tmp_path}/site{k}.safetensors", "name": f"site {k}"})
        nodes[-1]["state"] = str(tmp_path / f"state{k}")
        (tmp_path / f"policy{k}.toml").write_text(f'folders = ["{tmp_path}/setting"]')
        nodes[-1]["policy"] = str(tmp_path / f"policy{k}.toml")
    return nodes


SETTINGS = ["method.name=promptfl", "partition.shots=0", "federation.evaluate_every=0"]


def test_both_sides_read_why_a_site_refuses(tmp_path: Path) -> None:
    """Site 2 wants noise: it refuses the run. The others go on without it, and without a wait."""
    nodes = site_nodes(tmp_path, SETTINGS)
    (tmp_path / "policy2.toml").write_text("[privacy]\nnoise_at_least = 1.0")
    wanted = toy_config(tmp_path, *SETTINGS)
    journal = tmp_path / "journal.jsonl"
    told = {"nodes": nodes, "classes": SAID, "journal": str(journal), "wait": 300.0, "rejoin": 0.0}
    in_process.run(wanted, tmp_path / "run", CLIENTS, **told)  # type: ignore[arg-type]
    run = RunFolder.open(tmp_path / "run")
    assert run.manifest["rounds"][-1]["accepted"] == [0, 1]
    reason = "policy: privacy.noise = 0, 1 is the least"
    assert list(run.manifest["federation_refused"].values()) == [reason]
    here = [one for one in events(journal) if one["event"] == "refused"]
    assert [one["reason"] for one in here] == [reason]
    there = list(events(tmp_path / "state2" / "journal.jsonl"))
    assert [one["reason"] for one in there if one["event"] == "refused"] == [reason]
    kept = [one["event"] for one in events(tmp_path / "state0" / "journal.jsonl")]
    # Hello, two rounds, the last evaluation, sketches, and that the model is kept.
    assert kept.count("sent") == 6
    assert "accepted" in kept and "refused" not in kept


@pytest.mark.slow
def test_a_policy_that_changes_in_the_run_holds_from_the_next_message(tmp_path: Path) -> None:
    nodes = site_nodes(tmp_path, SETTINGS)
    wanted = toy_config(tmp_path, *SETTINGS)

    def strict_later(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        if message.metadata.message_type == "train":
            (tmp_path / "policy2.toml").write_text("epochs = 1\nmegabytes_in = 0.001")
        return reply

    answers = [client_app.app, client_app.app, strict_later]
    journal = tmp_path / "journal.jsonl"
    told = {"nodes": nodes, "classes": SAID, "journal": str(journal), "answers": answers}
    in_process.run(wanted, tmp_path / "run", CLIENTS, **told)  # type: ignore[arg-type]
    entries = RunFolder.open(tmp_path / "run").manifest["rounds"]
    assert [entry.get("accepted") for entry in entries[1:]] == [[0, 1, 2], [0, 1]]
    reason = entries[-1]["refused"]["site 2"]
    assert reason == "policy: a message of 0.0 MB, and 0.001 MB are the most"
    assert any(
        one["event"] == "refused" and one["site"] == "site 2" and one["round"] == 2
        for one in events(journal)
    )
    # The evaluation that follows tells the site what became of its update.
    last = list(events(tmp_path / "state2" / "journal.jsonl"))
    assert {"event": "left out", "round": 2, "reason": reason}.items() <= next(
        one for one in last if one["event"] == "left out"
    ).items()


@pytest.mark.parametrize(
    ("asked", "policy", "told"),
    [
        (["privacy.clip=1.0"], "[privacy]\nnoise_at_least = 1.0", "privacy.noise = 0"),
        (["data.ood=['folder:/home/records']"], "", "data.ood names files of this site"),
        (["federation.epochs=10000"], "", "federation.epochs = 10000"),
    ],
)
@pytest.mark.parametrize("step", ["query.hello", "train", "evaluate"])
def test_what_a_hostile_coordinator_asks_is_refused_before_an_image_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    policy: str,
    told: str,
    step: str,
) -> None:
    """Privacy off, a folder of the site, ten thousand epochs."""
    identify()
    monkeypatch.setattr(
        "focoop.flower.site.client.build_scenario", None
    )  # whoever opens images fails
    (tmp_path / "policy.toml").write_text(policy)
    node = {"partition-id": 0, "num-partitions": 3, "data": "folder:images"}
    node |= {"state": str(tmp_path / "state"), "policy": str(tmp_path / "policy.toml")}
    wanted = load(None, asked)
    context = Context(1, 1, node, RecordDict(), {**to_flat(wanted), "classes": SAID})
    record = Order(1, "0123456789abcdef", config_hash(wanted)).record()
    message = Message(RecordDict({CONFIG: record}), 1, step, ttl=60.0)
    message.metadata.__dict__["_message_id"] = "0" * 64
    reply = client_app.app(message, context)
    assert reply.has_error() and reply.error.code == guard.REFUSED
    assert str(reply.error.reason).startswith(f"policy: {told}")


PATIENT = "jane_doe_1970-01-01"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DataError(f"/srv/{PATIENT}.png cannot be read"), "images: its images cannot be used"),
        (ConfigError(f"class '{PATIENT}' is none"), "settings: it cannot run with these settings"),
        (MethodError(PATIENT), "method: the method cannot run there"),
        (OSError(28, "No space left", f"{PATIENT}.bin"), "storage: it cannot read or write"),
        (KeyError(PATIENT), "program: an error in its program"),
        (MemoryError(PATIENT), "memory: it has too little memory"),
        (FederationError(f"images/{PATIENT}/a.png is damaged"), "(a file) is damaged"),
        (PolicyFileError(f"{PATIENT}/policy.toml"), "policy: its policy file cannot be used"),
    ],
)
def test_errors_leave_without_names_and_stay_whole_in_the_journal(
    tmp_path: Path, error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    identify()
    node = {"data": "folder:images", "state": str(tmp_path / "state")}
    context = Context(1, 1, node, RecordDict(), to_flat(load(None, [])))
    order = Order(3, "0123456789abcdef", "hash")
    message = Message(RecordDict({CONFIG: order.record()}), 1, "train", ttl=60.0)
    message.metadata.__dict__["_message_id"] = "0" * 64

    def handle(message: Message, context: Context) -> Message:
        raise error

    reply = guard.guarded(handle, message, context)
    assert reply.has_error() and reply.error.reason is not None
    assert reply.error.reason.startswith(told)
    assert PATIENT not in reply.error.reason and type(error).__name__ not in reply.error.reason
    (last,) = [
        one for one in events(tmp_path / "state" / "journal.jsonl") if one["event"] == "failed"
    ]
    assert PATIENT in json.dumps(last) and last["round"] == 3
    assert PATIENT in caplog.text  # the site's own log


@pytest.mark.parametrize("as_one_text", [True, False])
def test_the_last_evaluation_is_the_end_for_a_site(tmp_path: Path, as_one_text: bool) -> None:
    """Both ways in which settings travel tell the number of rounds."""
    identify()
    node = {"data": "folder:images", "state": str(tmp_path)}
    flat = to_flat(load(None, ["federation.rounds=2"]))
    told = {SETTINGS_TEXT: json.dumps(flat)} if as_one_text else flat
    context = Context(1, 1, node, RecordDict(), told)
    for number, step in ((1, "evaluate"), (2, "train"), (2, "evaluate")):
        record = Order(number, "0123456789abcdef", "hash").record()
        message = Message(RecordDict({CONFIG: record}), 1, step, ttl=60.0)
        message.metadata.__dict__["_message_id"] = "0" * 64
        guard.guarded(lambda order, _: Message(RecordDict(), reply_to=order), message, context)
    found = [one["event"] for one in events(tmp_path / "journal.jsonl")]
    assert found == ["asked", "sent"] * 3 + ["finished"]


def test_what_flower_does_not_know_is_answered_too(tmp_path: Path) -> None:
    identify()
    node = {"data": "folder:images", "state": str(tmp_path)}
    message = Message(RecordDict({CONFIG: ConfigRecord()}), 1, "query.whatever", ttl=60.0)
    message.metadata.__dict__["_message_id"] = "0" * 64
    reply = client_app.app(message, Context(1, 1, node, RecordDict(), {}))
    assert reply.error == Error(guard.FAILED, guard.OTHER)


def test_a_number_of_sites_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sites.*100000"):
        server_settings({"sites": 10**9})


def test_rounds_beyond_the_runs_are_refused(tmp_path: Path) -> None:
    nodes = site_nodes(tmp_path, SETTINGS)
    wanted = toy_config(tmp_path, *SETTINGS)
    grid = in_process.InProcessGrid([client_app.app], {**to_flat(wanted), "classes": SAID})
    grid.contexts[0].node_config.update(nodes[0])
    order = Order(3, "0123456789abcdef", config_hash(wanted))
    message = Message(
        RecordDict({CONFIG: order.record()}), in_process.FIRST_NODE, "train", ttl=60.0
    )
    (identifier,) = grid.push_messages([message])
    (reply,) = grid.pull_messages([identifier])
    assert reply.error.reason == "policy: round 3 of a run of 2 rounds"

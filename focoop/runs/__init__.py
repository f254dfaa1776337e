"""A run is a folder; one file in it, `state.safetensors`, decides how far the run has come.

    config.toml                          the resolved configuration
    names.json                           class names, clients with their image counts, mined words
    manifest.json                        origin, hardware, status; checksums of it and of the above
    rounds.jsonl                         a line per round: times, bytes, checksums of its files
    metrics.jsonl                        one line per evaluated round; no times, so equal runs agree
    state.safetensors                    the server's tensors and the last committed round
    clients/0007/round-0012.safetensors  client 7's private tensors after round 12
    state.before.safetensors             the state of the round before, for `--round-before`
    log.txt                              what happened when, warnings, errors with their traceback

A round's private tensors, metrics and line are written first; replacing `state.safetensors` commits
them all. Private files of the last two rounds are kept. Opening for writing undoes whatever is
newer than the committed round, so a run killed at any moment goes on as if the unfinished round had
never begun. Whatever is read is compared with its checksum.

A folder opens anywhere and needs no image:

    from focoop.runs import RunFolder
    run = RunFolder.open(Path("runs/mine"))
    run.class_names, run.client_names, run.negative_words

May import: errors, caching, fields, plugins, config, methods.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.runs.begin import DamagedRun, list_runs, start, survey_runs
    from focoop.runs.durable import append, locked, write
    from focoop.runs.files import (
        BEFORE,
        CLIENTS,
        CONFIG,
        DRAW,
        LOCK,
        LOG,
        MANIFEST,
        METRICS,
        NAMES,
        ROUNDS,
        SLIM,
        STATE,
        TIMED,
        read_config,
        read_manifest,
    )
    from focoop.runs.folder import Committed, RunFolder
    from focoop.runs.lengthen import is_due
    from focoop.runs.log import run_log
    from focoop.runs.manifest import (
        answers_from_outside,
        collect,
        now,
        plain,
        used_plugins,
        versions,
    )
    from focoop.runs.names import Client, Names
    from focoop.runs.places import anchored, anchored_spec
    from focoop.runs.private_store import PrivateStore, dump, read
    from focoop.runs.slim import slim_files

__all__ = [
    "BEFORE",
    "CLIENTS",
    "CONFIG",
    "DRAW",
    "LOCK",
    "LOG",
    "MANIFEST",
    "METRICS",
    "NAMES",
    "ROUNDS",
    "SLIM",
    "STATE",
    "TIMED",
    "Client",
    "Committed",
    "DamagedRun",
    "Names",
    "PrivateStore",
    "RunFolder",
    "anchored",
    "anchored_spec",
    "answers_from_outside",
    "append",
    "collect",
    "dump",
    "is_due",
    "list_runs",
    "locked",
    "now",
    "plain",
    "read",
    "read_config",
    "read_manifest",
    "run_log",
    "slim_files",
    "start",
    "survey_runs",
    "used_plugins",
    "versions",
    "write",
]

__getattr__ = lazy_names(__name__, __file__)

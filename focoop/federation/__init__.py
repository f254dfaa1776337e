"""Rounds of federated training on one machine: clients, server, evaluation.

`updates/` is what happens to a client's update on its way: noise, compression, screening, secure
sums, edge servers.

May import: errors, seeds, fields, threads, plugins, functional, clip, methods.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.federation.answer_choices import PriorChoice, evaluate_choices
    from focoop.federation.client import SCHEDULES, LocalSettings
    from focoop.federation.contract_rules import RuleCheck, check_rules, require_rules
    from focoop.federation.evaluation.evaluate import evaluate
    from focoop.federation.evaluation.rows import Evaluation, summary_of
    from focoop.federation.evaluation.sets import EvaluationSets, Owned
    from focoop.federation.participation import Schedule, num_sampled, sample_clients
    from focoop.federation.rounds import (
        PrivateStore,
        RoundSetup,
        client_round,
        client_state,
        seeded_release,
        server_round,
        start,
    )
    from focoop.federation.simulator import RoundResult, simulate
    from focoop.federation.traffic import num_bytes, round_bytes
    from focoop.federation.updates.compression import (
        DOWN,
        UNCODED,
        UP,
        Payload,
        narrow,
        rounded,
        widen,
    )
    from focoop.federation.updates.differential_privacy import (
        COUNTS,
        Privacy,
        SecretNormal,
        composed,
    )
    from focoop.federation.updates.edges import Edges
    from focoop.federation.updates.screening import RULES, Defence, Screen
    from focoop.federation.updates.secure_sum import (
        HASH_BYTES,
        KEY_BYTES,
        LEAST_PARTIES,
        PACKAGE_BYTES,
        SHARE_BYTES,
        Words,
        num_words,
        pack,
        sum_bytes,
        summed,
        threshold_of,
        unpack,
    )

__all__ = [
    "COUNTS",
    "DOWN",
    "HASH_BYTES",
    "KEY_BYTES",
    "LEAST_PARTIES",
    "PACKAGE_BYTES",
    "RULES",
    "SCHEDULES",
    "SHARE_BYTES",
    "UNCODED",
    "UP",
    "Defence",
    "Edges",
    "Evaluation",
    "EvaluationSets",
    "LocalSettings",
    "Owned",
    "Payload",
    "PriorChoice",
    "Privacy",
    "PrivateStore",
    "RoundResult",
    "RoundSetup",
    "RuleCheck",
    "Schedule",
    "Screen",
    "SecretNormal",
    "Words",
    "check_rules",
    "client_round",
    "client_state",
    "composed",
    "evaluate",
    "evaluate_choices",
    "narrow",
    "num_bytes",
    "num_sampled",
    "num_words",
    "pack",
    "require_rules",
    "round_bytes",
    "rounded",
    "sample_clients",
    "seeded_release",
    "server_round",
    "simulate",
    "start",
    "sum_bytes",
    "summary_of",
    "summed",
    "threshold_of",
    "unpack",
    "widen",
]

__getattr__ = lazy_names(__name__, __file__)

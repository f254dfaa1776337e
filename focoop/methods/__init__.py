"""Federated prompt-learning methods: one file per method, with both its client and its server.

`base.py` is the contract. A file without a leading underscore is a method, found by its name.
Methods are functions of tensors: they know nothing of files, settings files, Flower or logging.

May import: errors, seeds, fields, threads, functional, clip; the registry alone: plugins.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.methods._answers import AnswerConfig, Answering
    from focoop.methods._averages import class_weighted_mean, federated_average, weighted_mean
    from focoop.methods._contexts import first_context
    from focoop.methods._metric import distinct_counts
    from focoop.methods._posterior import text_map
    from focoop.methods._prior import PRIOR, log_prior, shifted, split_prior
    from focoop.methods._registry import (
        ELSEWHERE,
        SPELLINGS,
        available,
        create,
        lookup,
        name_method,
    )
    from focoop.methods.base import (
        Batch,
        ClientUpdate,
        Logits,
        Method,
        Params,
        Prompt,
        Server,
        State,
        Task,
        Text,
        cosines,
        unread_text,
    )

__all__ = [
    "ELSEWHERE",
    "PRIOR",
    "SPELLINGS",
    "AnswerConfig",
    "Answering",
    "Batch",
    "ClientUpdate",
    "Logits",
    "Method",
    "Params",
    "Prompt",
    "Server",
    "State",
    "Task",
    "Text",
    "available",
    "class_weighted_mean",
    "cosines",
    "create",
    "distinct_counts",
    "federated_average",
    "first_context",
    "log_prior",
    "lookup",
    "name_method",
    "shifted",
    "split_prior",
    "text_map",
    "unread_text",
    "weighted_mean",
]

__getattr__ = lazy_names(__name__, __file__)

"""Contexts that start from words are those words, for every method that takes them."""

import pytest
import torch

from focoop.methods import available, lookup
from focoop.methods._contexts import first_context
from focoop.seeds import torch_generator
from tests.methods.contract_toy import make_task

WORDS = "a photo of a"
TAKING = ("promptfl", "local_only", "centralized", "focoop")


@pytest.mark.parametrize("name", TAKING)
def test_a_start_from_words_is_the_same_for_every_seed(name: str) -> None:
    assert name in available()
    kind = lookup(name)
    method = kind(kind.Config(start=WORDS))
    task = make_task(method)
    words = task.embed(WORDS)
    first, second = (method.init(task, torch_generator(seed, "init")) for seed in (0, 1))
    contexts = [v for v in (first.shared | first.private).values() if v.dim() >= 2]
    contexts = [v for v in contexts if v.shape[-2:] == words.shape]
    assert contexts and all(torch.equal(v, words.expand_as(v)) for v in contexts)
    assert all(torch.equal(first.shared[n], second.shared[n]) for n in first.shared)


def test_rows_do_not_share_memory() -> None:
    context = first_context(
        make_task(lookup("promptfl")()), torch_generator(0, "init"), 4, WORDS, rows=3
    )
    context[0] += 1.0
    assert not torch.equal(context[0], context[1]) and torch.equal(context[1], context[2])

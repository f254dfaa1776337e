"""What the server makes of all updates travels down alone: no client trains it or sends it back."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import focoop
from focoop.federation.contract import check_contract
from focoop.federation.contract_rules import check_rules
from focoop.federation.participation import Schedule
from focoop.federation.rounds import start
from focoop.federation.simulator import traffic
from focoop.federation.updates.compression import Payload
from focoop.federation.updates.edges import Edges
from focoop.federation.updates.secure_sum import EXTRA, num_words, summed
from focoop.methods import create, federated_average
from focoop.methods._weights import TIMES
from focoop.methods.base import Batch, ClientUpdate, Logits, Params, Prompt, Server, State, Task
from tests.methods.contract_toy import (
    CLASSES,
    DIM,
    LOCAL,
    SEED,
    WIDTH,
    federate,
    make_clients,
    make_task,
)

CLIENTS = [[0, 1, 2, 3, 0, 1], [2, 2, 3, 0], [1, 3, 0, 0, 2]]
TOKENS = 2


class Counted(focoop.Method):
    """One context, and a number that the server makes: how many images have trained it so far."""

    shares = "context"
    server_made = ("images",)

    def init(self, task: Task, generator: torch.Generator) -> State:
        context = focoop.first_context(task, generator, TOKENS)
        return State({"context": context, "images": context.new_zeros(1)})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        return {"id": Prompt(params["context"], task.id_names)}

    def logits(self, text: focoop.Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        return focoop.cosines(text, pooled)

    def loss(
        self, params: Params, text: focoop.Text, batch: Batch, task: Task, noise: Params
    ) -> Tensor:
        logits = self.logits(text, batch.pooled, None).id + 0.0 * params["images"]
        return torch.nn.functional.cross_entropy(task.logit_scale * logits, batch.labels)

    def score(self, logits: Logits, task: Task) -> Tensor:
        return focoop.scores.mcm(logits.id)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        images = server.shared["images"] + sum(update.num_examples for update in updates)
        averaged = federated_average(server, updates)
        assert torch.equal(averaged.shared["images"], server.shared["images"])
        return Server({**averaged.shared, "images": images})


def test_a_tensor_of_the_servers_goes_down_and_never_up() -> None:
    method = Counted()
    task = make_task(method)
    clients = make_clients(method, task, CLIENTS)
    check_contract(method, task, clients[0]())
    assert all(rule.kept for rule in check_rules(method, task, clients[0]()))
    outcome = federate(method, task, CLIENTS)
    sizes = [len(client()) for client in clients]
    rounds = len(outcome.rounds)
    assert outcome.server.shared["images"].tolist() == [rounds * sum(sizes)]
    context, counts = 4 * TOKENS * WIDTH, 8 * len(CLASSES)
    for one in outcome.rounds:
        assert one.bytes_up == len(clients) * (context + counts)
        assert one.bytes_down == len(clients) * (context + 4)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_compression_rules_edges_and_sums_know_that_it_does_not_come(kind: str) -> None:
    method = Counted()
    task = make_task(method)
    shared = method.init(task, torch.Generator()).shared
    updates = [
        ClientUpdate(k, {"context": shared["context"] + k}, 3, torch.tensor([3, 0, 0, 0]), 1.0)
        for k in range(3)
    ]
    payload, coins = Payload(kind), torch.Generator()
    for update in updates:
        arrived = payload.through(update.shared, method.sent(shared), coins)
        torch.testing.assert_close(arrived, update.shared, atol=0.02, rtol=1e-3)
    server = Server(shared)
    for rule in ("clip", "median", "trimmed", "krum"):
        screen = focoop.federation.Defence(rule).screen
        passed, report = screen(method, server, updates, task)
        assert len(passed) == 3 and report["refused"] == 0
    with_it = [ClientUpdate(4, dict(shared), 3, torch.tensor([3, 0, 0, 0]), 1.0)]
    assert focoop.federation.Defence("median").screen(method, server, with_it, task)[0] == []
    for join in (summed, Edges(1).screen):
        ((mean,), _) = join(method, server, updates, task)
        assert mean.shared.keys() == {"context"}
        torch.testing.assert_close(mean.shared["context"], shared["context"] + 1, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["fedlda", "fed3r", "gda_clip", "focoop_plus"])
def test_clients_of_closed_forms_send_sums_and_nothing_else(name: str) -> None:
    method = create(name)
    task = make_task(method)
    shared = start(method, task, SEED).shared
    sums = DIM * len(CLASSES) + DIM * DIM + TIMES * (len(CLASSES) + 2)  # means, moment, weights
    counts = len(CLASSES)
    up, down = traffic(method, Schedule(1, 1.0, LOCAL), shared, 5, counts)
    assert up == 5 * (4 * sums + 8 * counts)
    assert down == 5 * 4 * sum(value.numel() for value in shared.values()) > 5 * 4 * sums
    assert num_words(method.sent(shared), counts) == sums + counts + EXTRA

"""A method of a user's own is tried on a few images: what breaks the contract is named."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import focoop
from focoop.clip.base import LabelledFeatures
from focoop.errors import MethodError
from focoop.federation.contract import check_contract
from focoop.federation.contract_rules import RuleCheck, check_rules
from focoop.federation.rounds import aggregate
from focoop.methods import available, create
from focoop.methods.base import Batch, Logits, Method, Params, Prompt, Server, State, Task, Text
from tests.methods.contract_toy import CLASSES, make_clients, make_task


class Mine(Method):
    """One context for all classes, averaged plainly, and a private bias of each client."""

    shares, keeps = "context", "a bias"

    def init(self, task: Task, generator: torch.Generator) -> State:
        context = focoop.first_context(task, generator, 2)
        return State({"context": context}, {"bias": torch.zeros(len(task.classes))})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        return {"id": Prompt(params["context"], task.id_names)}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        return Text(features["id"], parts={"bias": params["bias"]})

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        return Logits(pooled @ text.id.T + text.parts["bias"])

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        logits = self.logits(text, batch.pooled, batch.patches)
        return torch.nn.functional.cross_entropy(task.logit_scale * logits.id, batch.labels)

    def score(self, logits: Logits, task: Task) -> Tensor:
        return focoop.scores.mcm(logits.id)

    def aggregate(self, server: Server, updates: Sequence[Any], task: Task) -> Server:
        return Server({"context": focoop.weighted_mean(updates, "context")})


def changed(**members: Any) -> Method:
    """Mine, with some functions or attributes replaced."""
    return type("Mine", (Mine,), members)()


def images(task: Task) -> LabelledFeatures:
    """Five images, so that they are not as many as the classes."""
    return make_clients(Mine(), task, [[0, 1, 2, 3, 0]])[0]()


def usual(name: str) -> Callable[..., Any]:
    """What Mine does."""
    return vars(Mine)[name]


LOSS, SCORE = usual("loss"), usual("score")


def keeps_something(self: Method, *given: Any) -> Tensor:
    self.last = given[0]  # type: ignore[attr-defined]
    return LOSS(self, *given)


def draws(self: Method, *given: Any) -> Tensor:
    return LOSS(self, *given) + 0.1 * torch.rand(())


def writes(self: Method, params: Params, *given: Any) -> Tensor:
    loss = LOSS(self, params, *given)
    with torch.no_grad():
        params["bias"].add_(1.0)
    return loss


def branches_on_a_value(self: Method, *given: Any) -> Tensor:
    loss = LOSS(self, *given)
    return loss if loss > 0 else -loss


WRONG = {
    "loss: each image's": (
        {"loss": lambda self, *given: LOSS(self, *given).expand(5)},
        r"Mine\.loss returned a tensor of the shape \(5,\): expected \(\), one number",
    ),
    "loss: nothing": (
        {"loss": lambda self, *given: None},
        r"Mine\.loss must return a tensor .*: it returned None \(is a return missing\?\)",
    ),
    "loss: NaN": (
        {"loss": lambda self, *given: LOSS(self, *given) * float("nan")},
        r"Mine\.loss gives NaN or infinite numbers \(1 of 1\) on the first images",
    ),
    "loss: without parameters": (
        {"loss": lambda self, *given: LOSS(self, *given).detach()},
        r"Mine\.loss depends on no parameter",
    ),
    "loss: forgets a tensor": (
        {
            "text": Method.text,
            "logits": lambda self, text, pooled, patches: Logits(pooled @ text.id.T),
        },
        r"Mine\.loss does not depend on 'bias', so it would never train",
    ),
    "loss: fails": (
        {"loss": lambda self, params, text, batch, task, noise: batch.pooled @ text.id},
        r"Mine\.loss failed in .*test_contract_check\.py, line \d+: RuntimeError: .*5x16 and 4x16",
    ),
    "score: a column": (
        {"score": lambda self, logits, task: SCORE(self, logits, task)[:, None]},
        r"Mine\.score returned a tensor of the shape \(5, 1\): expected \(5,\), a score per image",
    ),
    "score: an array": (
        {"score": lambda self, logits, task: SCORE(self, logits, task).numpy()},
        r"Mine\.score must return a tensor \(a score per image\): it returned a ndarray",
    ),
    "score: whole numbers": (
        {"score": lambda self, logits, task: logits.id.argmax(dim=1)},
        r"Mine\.score returned a tensor of torch\.int64: expected floating point",
    ),
    "logits: transposed": (
        {"logits": lambda self, text, pooled, patches: Logits(text.id @ pooled.T)},
        r"Mine\.logits returned a tensor as id of the shape \(4, 5\): expected \(5, 4\)",
    ),
    "logits: a tensor": (
        {"logits": lambda self, text, pooled, patches: pooled @ text.id.T},
        r"Mine\.logits must return focoop\.Logits\(id\).*: it returned a Tensor",
    ),
    "text: too few classes": (
        {"text": lambda self, params, features, task: Text(features["id"][:2])},
        r"Mine\.text returned a tensor as id of the shape \(2, 16\): expected \(4, any\)",
    ),
    "prompts: no id": (
        {
            "prompts": lambda self, params, task: {
                "mine": Prompt(params["context"], task.id_names)
            },
            "text": Method.text,
        },
        r"Mine\.prompts gives 'mine', and no 'id'",
    ),
    "prompts: wrong width": (
        {"prompts": lambda self, params, task: {"id": Prompt(torch.zeros(2, 3), task.id_names)}},
        r"contexts of the shape \(2, 3\) for 'id': expected \(n, 6\) for all names or \(4, n, 6\)",
    ),
    "init: a dictionary": (
        {"init": lambda self, task, generator: {"context": torch.zeros(2, 6)}},
        r"Mine\.init must return focoop\.State\(.*: it returned a dict",
    ),
    "init: one name twice": (
        {"init": lambda self, task, generator: State({"a": torch.zeros(1)}, {"a": torch.ones(1)})},
        r"Mine\.init gives 'a' as shared and as private",
    ),
    "aggregate: forgets a tensor": (
        {"aggregate": lambda self, server, updates, task: Server({})},
        r"must return all shared tensors of init \('context'\) and no others: it lacks 'context'",
    ),
    "aggregate: adds one": (
        {
            "aggregate": lambda self, server, updates, task: Server(
                {**server.shared, "momentum": torch.zeros(1)}
            )
        },
        r"it adds 'momentum'; what the server keeps for itself goes into memory",
    ),
    "aggregate: another shape": (
        {
            "aggregate": lambda self, server, updates, task: Server(
                {"context": server.shared["context"][:1]}
            )
        },
        r"Mine\.aggregate returned 'context' as \(1, 6\) float32: init gave \(2, 6\) float32",
    ),
    "aggregate: a dictionary": (
        {"aggregate": lambda self, server, updates, task: dict(server.shared)},
        r"Mine\.aggregate must return focoop\.Server\(.*: it returned a dict",
    ),
    "measure: never called": (
        {"measure": lambda self, params, images, task: {"context": params["context"]}},
        r"Mine\.measure would never be called: name the shared tensors",
    ),
    "measure: not untrained": (
        {
            "untrained": ("context",),
            "measure": lambda self, params, images, task: {"bias": torch.zeros(4)},
        },
        r"Mine\.measure gives 'bias', which the class attribute `untrained` does not name",
    ),
    "remember: never called": (
        {
            "init": lambda self, task, generator: State({"context": torch.zeros(2, 6)}),
            "remember": lambda self, private, images, task: private,
        },
        r"Mine\.remember would never be called: init gives no private tensors",
    ),
    "untrained: no such tensor": (
        {"untrained": ("means",)},
        r"Mine\.untrained names 'means', and init gives no tensor of this name",
    ),
    "server_made: private": (
        {"server_made": ("bias",)},
        r"Mine\.server_made names 'bias', and init gives no shared tensor of this name",
    ),
    "by_class: no row per class": (
        {"by_class": ("context",)},
        r"by_class names 'context', which must have a row per class \(4, \.\.\.\), .*\(2, 6\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_function_is_named_with_what_it_should_return(case: str) -> None:
    members, message = WRONG[case]
    if case == "loss: forgets a tensor":
        members = {
            **members,
            "logits": lambda self, text, pooled, patches: Logits(pooled @ text.id.T),
        }
    method = changed(**members)
    task = make_task(Mine())
    with pytest.raises(MethodError, match=message):
        check_contract(method, task, images(task))


def test_a_refusal_of_the_method_itself_stays_as_it_is() -> None:
    def refuses(self: Method, task: Task, generator: torch.Generator) -> State:
        raise MethodError("mine needs eight classes")

    task = make_task(Mine())
    with pytest.raises(MethodError, match=r"^mine needs eight classes$"):
        check_contract(changed(init=refuses), task, images(task))


def problems(method: Method) -> dict[str, str]:
    """What is wrong, by rule."""
    task = make_task(method)
    (data,) = make_clients(method, task, [[0, 1, 2, 3, 0]])
    return {check.rule: check.problem for check in check_rules(method, task, data())}


@pytest.mark.parametrize("name", list(available()))
def test_every_method_of_focoop_keeps_all_rules(name: str) -> None:
    found = problems(create(name))
    assert not any(found.values()), found
    assert len(found) >= (3 if not create(name).trains else 5)


def one_number_per_class_held(self: Method, private: Params, counts: Tensor, task: Task) -> Params:
    return {"bias": private["bias"][counts > 0]}


BROKEN = {
    "clients of other shapes": (
        {
            "personalise": one_number_per_class_held,
            "text": lambda self, params, features, task: Text(
                features["id"], parts={"bias": params["bias"].mean()}
            ),
        },
        "clients that train in one batch",
        "Or set together = False in the class",
    ),
    "keeps something on self": ({"loss": keeps_something}, "loss is a", "on self"),
    "draws": ({"loss": draws}, "loss is a", "draws random numbers"),
    "writes": ({"loss": writes}, "loss is a", "writes into 'bias'"),
    "branches": ({"loss": branches_on_a_value}, "clients that train in one batch", "vmap"),
    "centres images": (
        {
            "logits": lambda self, text, pooled, patches: Logits(
                (pooled - pooled.mean(dim=0)) @ text.id.T + text.parts["bias"]
            )
        },
        "answers and scores",
        "logits of an image changes",
    ),
    "says nothing": ({"shares": "nothing"}, "shares and keeps", "init gives context: name it"),
    "says too much": (
        {
            "init": lambda self, task, generator: State(
                usual("init")(self, task, generator).shared
            ),
            "text": Method.text,
            "logits": lambda self, text, pooled, patches: focoop.cosines(text, pooled),
        },
        "shares and keeps",
        "keeps = 'a bias' and init gives nothing",
    ),
    "ranks scores": (
        {"score": lambda self, logits, task: SCORE(self, logits, task).softmax(dim=0)},
        "answers and scores",
        "score of an image changes",
    ),
    "sums updates": (
        {
            "aggregate": lambda self, server, updates, task: Server(
                {"context": sum(u.num_examples * u.shared["context"] for u in updates)}
            )
        },
        "equal updates",
        "divided by their sum",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_named_and_the_others_are_kept(case: str) -> None:
    members, rule, problem = BROKEN[case]
    found = {name: told for name, told in problems(changed(**members)).items() if told}
    assert any(name.startswith(rule) and problem in told for name, told in found.items()), found
    # Who writes into parameters in training also writes into the copies that other rules look at.
    assert len(found) == 1 or case in ("writes", "draws"), found


def test_a_method_that_trains_client_by_client_is_not_asked_for_one_batch() -> None:
    found = problems(changed(loss=branches_on_a_value, together=False))
    assert not any(found.values()) and not any("one batch" in rule for rule in found)


def test_wrong_shapes_end_the_check_of_rules() -> None:
    task = make_task(Mine())
    (check,) = check_rules(changed(init=lambda self, task, generator: None), task, images(task))
    assert isinstance(check, RuleCheck) and not check.kept and "it returned None" in check.problem


def test_a_server_step_of_another_shape_ends_the_round() -> None:
    method = changed(
        aggregate=lambda self, server, updates, task: Server({"context": torch.zeros(len(CLASSES))})
    )
    task = make_task(Mine())
    state = Mine().init(task, torch.Generator())
    counts = torch.ones(len(CLASSES), dtype=torch.int64)
    update = focoop.ClientUpdate(0, dict(state.shared), 4, counts, 0.0)
    with pytest.raises(MethodError, match=r"'context' as \(4,\) float32: init gave \(2, 6\)"):
        aggregate(method, Server(state.shared), [update], task)

"""Try a method's functions on a few images, and name the first one that breaks the contract.

A round is played in small: every function of `Method` is called once, in the order of a round, and
what it returns is compared with what the contract asks for. A mistake is found in a second, before
a run spends time, and the message names the function, what it returned and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from focoop.clip import LabelledFeatures
from focoop.errors import FocoopError, MethodError
from focoop.federation.client import make_update, trains
from focoop.methods import (
    ClientUpdate,
    Logits,
    Method,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
    unread_text,
)
from focoop.plugins import line_of
from focoop.seeds import torch_generator

SEED = 0


def check_contract(method: Method, task: Task, images: LabelledFeatures) -> None:
    """Call every function of a method once, and check what it returns.

    Args:
        method: The method.
        task: The task, with what `prepare` made of it.
        images: A few training images of one client.

    Raises:
        MethodError: A function fails, or returns something of another type, name or shape than the
            contract says.
    """
    first = images.rows(torch.arange(len(images)), task.device)
    state = _started(method, task, first)
    text = _text_side(method, {**state.shared, **state.private}, task)
    _answers(method, text, first, task)
    if method.trains:
        _loss(method, {**state.shared, **state.private}, first, task)
        _server(method, state, first, task)


def _started(method: Method, task: Task, images: LabelledFeatures) -> State:
    """A client's first state, from `init` and `personalise`."""
    generator = torch_generator(SEED, "init")
    state = called(method, "init", method.init, task, generator)
    if not isinstance(state, State):
        raise _wrong(method, "init", "focoop.State(shared={...}, private={...})", state)
    _named_tensors(method, "init", state.shared, " as shared")
    _named_tensors(method, "init", state.private, " as private")
    if both := sorted(set(state.shared) & set(state.private)):
        raise MethodError(
            f"{_name(method, 'init')} gives {both[0]!r} as shared and as private: a tensor either "
            "travels or stays, so use two names"
        )
    _attributes(method, state, task)
    if not state.private:
        return state
    counts = images.counts(len(task.classes))
    private = called(method, "personalise", method.personalise, dict(state.private), counts, task)
    _named_tensors(method, "personalise", private)
    return State(state.shared, private)


def _attributes(method: Method, state: State, task: Task) -> None:
    """Class attributes must fit what `init` gave, and functions that would never be called."""
    either = {**state.shared, **state.private}
    shared = state.shared
    for attribute, known in (("untrained", either), ("server_made", shared), ("by_class", shared)):
        for name in getattr(method, attribute):
            if name not in known:
                kind = "" if attribute == "untrained" else "shared "
                raise MethodError(
                    f"{_name(method, attribute)} names {name!r}, and init gives no {kind}tensor "
                    f"of this name: it gives {_listed(known)}"
                )
    for name in method.by_class:
        if len(state.shared[name]) != len(task.classes):
            raise MethodError(
                f"{_name(method, 'by_class')} names {name!r}, which must have a row per class "
                f"({len(task.classes)}, ...), and has the shape {tuple(state.shared[name].shape)}"
            )
    if _writes(method, "measure") and not method.untrained:
        raise MethodError(
            f"{_name(method, 'measure')} would never be called: name the shared tensors that it "
            'fills in the class attribute `untrained`, as in untrained = ("means",)'
        )
    for function in ("personalise", "remember"):
        if _writes(method, function) and not state.private:
            raise MethodError(
                f"{_name(method, function)} would never be called: init gives no private tensors. "
                'Give those it makes a first value there, as in private={"counts": zeros}'
            )


def _text_side(method: Method, params: Params, task: Task) -> Text:
    """The text side of a client's model, from `prompts` and `text`."""
    prompts = called(method, "prompts", method.prompts, dict(params), task)
    if not isinstance(prompts, dict):
        raise _wrong(method, "prompts", '{"id": focoop.Prompt(context, task.id_names)}', prompts)
    for name, prompt in prompts.items():
        if not isinstance(prompt, Prompt):
            wanted = f"{{{name!r}: focoop.Prompt(contexts, names)}}"
            raise _wrong(method, "prompts", wanted, prompt)
        shape, rows = tuple(prompt.contexts.shape), len(prompt.names)
        if len(shape) not in (2, 3) or shape[-1] != task.width or shape[:-2] not in ((), (rows,)):
            raise MethodError(
                f"{_name(method, 'prompts')} gives contexts of the shape {shape} for {name!r}: "
                f"expected (n, {task.width}) for all names or ({rows}, n, {task.width}), one each"
            )
    if type(method).text is Method.text and "id" not in prompts:
        raise MethodError(
            f"{_name(method, 'prompts')} gives {_listed(prompts)}, and no 'id': call the prompts "
            "of the classes 'id', or write the function text"
        )
    with torch.no_grad():
        features = {name: task.encode(p.contexts, p.names) for name, p in prompts.items()}
        text = called(method, "text", method.text, dict(params), features, task)
    if not isinstance(text, Text):
        raise _wrong(method, "text", "focoop.Text(id, ood)", text)
    _shaped(method, "text", "id", text.id, (len(task.classes), None), "a row per class")
    return text


def _answers(method: Method, text: Text, images: LabelledFeatures, task: Task) -> None:
    """`logits` and `score` of some images."""
    with torch.no_grad():
        logits = called(method, "logits", method.logits, text, images.pooled, images.patches)
        if not isinstance(logits, Logits):
            raise _wrong(method, "logits", "focoop.Logits(id), as focoop.cosines gives it", logits)
        rows = (len(images), len(task.classes))
        _shaped(method, "logits", "id", logits.id, rows, "images x classes")
        if logits.ood is not None:
            _shaped(method, "logits", "ood", logits.ood, (rows[0], None), "images x OOD prompts")
        scores = called(method, "score", method.score, logits, task)
    _shaped(method, "score", "", scores, rows[:1], "a score per image")
    _finite(method, "score", "", scores)


def _loss(method: Method, params: Params, images: LabelledFeatures, task: Task) -> None:
    """The loss of a step, and that it trains what it should."""
    leaves = {
        name: value.detach().clone().requires_grad_(trains(method, name, value))
        for name, value in params.items()
    }
    trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    generator = torch_generator(SEED, "check")
    noise = called(method, "noise", method.noise, len(images), task, generator)
    _named_tensors(method, "noise", noise)
    noise = {name: value.to(task.device) for name, value in noise.items()}
    text = method.encode(leaves, task) if method.reads_text else unread_text()
    loss = called(method, "loss", method.loss, leaves, text, images, task, noise)
    _shaped(method, "loss", "", loss, (), "one number, such as the mean over the batch")
    _finite(method, "loss", "", loss)
    if method.closed_form or not trained:
        return
    if not loss.requires_grad:
        raise MethodError(
            f"{_name(method, 'loss')} depends on no parameter, so nothing would train: compute it "
            "from `text` or `params`, without .detach(), .item() or torch.no_grad()"
        )
    gradients = torch.autograd.grad(loss, [*trained.values()], allow_unused=True)
    for name, gradient in zip(trained, gradients, strict=True):
        if gradient is None:
            raise MethodError(
                f"{_name(method, 'loss')} does not depend on {name!r}, so it would never train: "
                "use it in prompts, text or loss; a tensor that measure fills is named in "
                "`untrained`, one that the server makes in `server_made`; a constant is made in "
                "prepare (task.frozen)"
            )
        _finite(method, "loss", f"the gradient of {name!r}", gradient)


def _server(method: Method, state: State, images: LabelledFeatures, task: Task) -> None:
    """What a client measures, and the server's step over two clients."""
    if method.untrained:
        measured = called(method, "measure", method.measure, dict(state.shared), images, task)
        _named_tensors(method, "measure", measured)
        for name, value in measured.items():
            if name not in method.untrained:
                raise MethodError(
                    f"{_name(method, 'measure')} gives {name!r}, which the class attribute "
                    f"`untrained` does not name: it names {_listed(method.untrained)}"
                )
            if name not in state.shared:
                raise MethodError(
                    f"{_name(method, 'measure')} gives {name!r}, which is private: measure makes "
                    "shared tensors, remember makes private ones"
                )
            _like(method, "measure", name, value, state.shared[name])
    if state.private:
        kept = called(method, "remember", method.remember, dict(state.private), images, task)
        _named_tensors(method, "remember", kept)
        _same_names(method, "remember", kept, state.private, "private")
    update = make_update(method, 0, state, images, task, 1.0)
    server = called(method, "aggregate", method.aggregate, *_received(state, update), task)
    if not isinstance(server, Server):
        raise _wrong(method, "aggregate", 'focoop.Server({"context": mean})', server)
    _named_tensors(method, "aggregate", server.shared, " as shared")
    _named_tensors(method, "aggregate", server.memory, " as memory")
    check_shared(method, server.shared, state.shared)
    for name, value in server.shared.items():
        _finite(method, "aggregate", repr(name), value)


def _received(state: State, update: ClientUpdate) -> tuple[Server, Sequence[ClientUpdate]]:
    """What the server's step is given: two clients of equal updates."""
    return Server(dict(state.shared)), [update, replace(update, client=1)]


def check_shared(method: Method, shared: Params, before: Params) -> None:
    """Check that a server step keeps the names, shapes and types of the shared tensors.

    Args:
        method: The method.
        shared: What `aggregate` returned.
        before: The shared tensors before the step.

    Raises:
        MethodError: A tensor is missing, new, or of another shape or type.
    """
    _same_names(method, "aggregate", shared, before, "shared")
    for name, value in shared.items():
        _like(method, "aggregate", name, value, before[name])


def called(method: Method, function: str, body: Callable[..., Any], *given: Any) -> Any:
    """Call a function of a method; what it raises becomes an error that says where.

    Args:
        method: The method.
        function: The function's name.
        body: What to call.
        *given: Its arguments.

    Returns:
        What it returns.

    Raises:
        MethodError: It failed; the error itself is the cause.
        FocoopError: The method refused, with a message of its own.
    """
    try:
        return body(*given)
    except FocoopError:
        raise
    except Exception as error:  # a user's own code: whatever it raises
        place = line_of(error, getattr(type(method), function).__module__)
        reason = f"{type(error).__name__}: {error}"
        raise MethodError(f"{_name(method, function)} failed{place}: {reason}") from error


def _writes(method: Method, function: str) -> bool:
    """Whether the method's own class, not one of focoop's it derives from, has a function."""
    return function in vars(type(method))


def _named_tensors(method: Method, function: str, given: Any, role: str = "") -> None:
    if not isinstance(given, Mapping) or not all(isinstance(v, Tensor) for v in given.values()):
        strange = given
        if isinstance(given, Mapping):
            strange = next(value for value in given.values() if not isinstance(value, Tensor))
        raise _wrong(method, function, f"tensors by name{role}, {{name: tensor}}", strange)


def _shaped(
    method: Method, function: str, part: str, value: Any, shape: tuple[int | None, ...], told: str
) -> None:
    """Refuse a tensor of another shape; None stands for any size."""
    where = f" as {part}" if part else ""
    if not isinstance(value, Tensor):
        raise _wrong(method, function, f"a tensor{where} ({told})", value)
    fits = len(shape) == value.ndim and all(
        wanted in (None, size) for wanted, size in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise MethodError(
            f"{_name(method, function)} returned a tensor{where} of the shape "
            f"{tuple(value.shape)}: expected {_sizes(shape)}, {told}"
        )
    if not value.is_floating_point():
        raise MethodError(
            f"{_name(method, function)} returned a tensor{where} of {value.dtype}: expected "
            "floating point"
        )


def _sizes(shape: tuple[int | None, ...]) -> str:
    """Write a shape; None is any size.

    >>> _sizes((5, 100)), _sizes((100, None)), _sizes((5,)), _sizes(())
    ('(5, 100)', '(100, any)', '(5,)', '()')
    """
    return str(shape).replace("None", "any")


def _finite(method: Method, function: str, part: str, value: Tensor) -> None:
    broken = int((~torch.isfinite(value)).sum())
    if value.is_floating_point() and broken:
        where = f" for {part}" if part else ""
        raise MethodError(
            f"{_name(method, function)} gives NaN or infinite numbers{where} "
            f"({broken} of {value.numel()}) on the first images: look for log(0), a division by 0 "
            "or a norm of 0"
        )


def _like(method: Method, function: str, name: str, value: Tensor, before: Tensor) -> None:
    if value.shape != before.shape or value.dtype != before.dtype:
        told = [f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (value, before)]
        raise MethodError(
            f"{_name(method, function)} returned {name!r} as {told[0]}: init gave {told[1]}, and "
            "a shared tensor keeps its shape and type"
        )


def _same_names(method: Method, function: str, given: Params, before: Params, role: str) -> None:
    """Refuse what lacks a name, or brings a new one."""
    if given.keys() == before.keys():
        return
    lost, new = sorted(before.keys() - given.keys()), sorted(given.keys() - before.keys())
    told = [f"lacks {_listed(lost)}"] if lost else []
    told += [f"adds {_listed(new)}"] if new else []
    hint = ""
    if function == "aggregate" and new:
        hint = "; what the server keeps for itself goes into memory, focoop.Server(shared, memory)"
    raise MethodError(
        f"{_name(method, function)} must return all {role} tensors of init ({_listed(before)}) "
        f"and no others: it {' and '.join(told)}{hint}"
    )


def _wrong(method: Method, function: str, wanted: str, value: object) -> MethodError:
    kind = "None (is a return missing?)" if value is None else f"a {type(value).__name__}"
    return MethodError(f"{_name(method, function)} must return {wanted}: it returned {kind}")


def _name(method: Method, function: str) -> str:
    return f"{type(method).__name__}.{function}"


def _listed(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, names)) or "none"

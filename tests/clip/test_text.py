"""The text engine against a plain reference: float64, full length, one position after another."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from focoop.clip.base import Backbone
from focoop.clip.text.tower import Names, TextTower
from focoop.errors import BackboneError, ConfigError
from focoop.seeds import torch_generator
from tests.helpers import CONTEXT_LENGTH, EOT, VOCABULARY, toy_backbone

CLASSES = ["cat", "hot_air balloon", "a very long name of a thing", "dog", "red fox"]
ACTIVATIONS = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
}


def slow_norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean()
    scaled = centred / torch.sqrt((centred**2).mean() + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def slow_linear(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def slow_tower(tower: TextTower, sequence: Tensor, position: int) -> Tensor:
    """(L, d_t) embeddings of one padded sequence -> (D,) unit feature, position by position."""
    weights = {name: weight.double() for name, weight in tower.state_dict().items()}
    heads, size = tower.shape.heads, tower.width // tower.shape.heads
    activation = ACTIVATIONS[tower.shape.activation]
    states = [x + p for x, p in zip(sequence.double(), weights["pos"], strict=True)]
    for layer in range(tower.shape.layers):
        at = f"blocks.{layer}"
        triples = [
            slow_linear(slow_norm(x, weights, f"{at}.ln_1"), weights, f"{at}.qkv").chunk(3)
            for x in states
        ]
        mixed = []
        for i, (query, _, _) in enumerate(triples):
            parts = []
            for head in range(heads):
                cut = slice(head * size, (head + 1) * size)
                logits = [query[cut] @ triples[j][1][cut] / math.sqrt(size) for j in range(i + 1)]
                shares = torch.softmax(torch.stack(logits), dim=0)
                parts.append(sum(shares[j] * triples[j][2][cut] for j in range(i + 1)))
            mixed.append(torch.cat(parts))
        states = [
            x + slow_linear(m, weights, f"{at}.o") for x, m in zip(states, mixed, strict=True)
        ]
        hidden = [
            activation(slow_linear(slow_norm(x, weights, f"{at}.ln_2"), weights, f"{at}.f1"))
            for x in states
        ]
        states = [
            x + slow_linear(h, weights, f"{at}.f2") for x, h in zip(states, hidden, strict=True)
        ]
    feature = weights["proj.weight"] @ slow_norm(states[position], weights, "lnf")
    return feature / torch.sqrt((feature**2).sum())


def slow_prompt(backbone: Backbone, context: Tensor, name: str) -> Tensor:
    """One context (n, d_t) and one name, as the 0-padded sequence of the specification."""
    tokens = backbone.tokenize([name.replace("_", " ") + "."])[0]
    embeddings = backbone.text.tok(tokens).double()
    n = len(context)
    sequence = torch.cat([embeddings[:1], context.double(), embeddings[1 : len(tokens) - n]])
    return slow_tower(backbone.text, sequence, n + int(tokens.argmax()))


def random_contexts(backbone: Backbone, *shape: int) -> Tensor:
    return torch.randn(*shape, backbone.width, generator=torch_generator(7, "contexts", *shape))


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_values_agree_with_the_slow_tower(activation: str) -> None:
    backbone = toy_backbone()
    tower = TextTower(
        dataclasses.replace(backbone.text.shape, activation=activation), backbone.text.tok
    )
    tower.load_state_dict(backbone.text.state_dict())
    backbone.text = tower
    contexts = random_contexts(backbone, len(CLASSES), 4)
    out = backbone.encode_prompts(contexts, backbone.names(CLASSES))
    for row, context, name in zip(out, contexts, CLASSES, strict=True):
        torch.testing.assert_close(
            row.double(), slow_prompt(backbone, context, name), atol=2e-6, rtol=0
        )


def test_mini_tower_agrees_with_the_slow_tower(mini: Backbone) -> None:
    context = 0.05 * random_contexts(mini, 3)
    out = mini.encode_prompts(context, mini.names(["aquarium_fish"]))[0]
    expected = slow_prompt(mini, context, "aquarium_fish")
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=0)


def test_gradients_agree_with_the_slow_tower_and_finite_differences() -> None:
    backbone = toy_backbone()
    names = CLASSES[:2]
    contexts = random_contexts(backbone, 2, 3).requires_grad_()
    direction = torch.randn(2, backbone.dim, generator=torch_generator(1, "direction"))
    (backbone.encode_prompts(contexts, backbone.names(names)) * direction).sum().backward()

    slow = contexts.detach().double().requires_grad_()

    def objective(values: Tensor) -> Tensor:
        rows = [slow_prompt(backbone, v, n) for v, n in zip(values, names, strict=True)]
        return (torch.stack(rows) * direction).sum()

    objective(slow).backward()
    assert contexts.grad is not None and slow.grad is not None
    torch.testing.assert_close(contexts.grad.double(), slow.grad, atol=2e-5, rtol=1e-4)

    step = 1e-5
    with torch.no_grad():
        for spot in [(0, 0, 0), (0, 2, 5), (1, 1, 15)]:
            move = torch.zeros_like(slow)
            move[spot] = step
            slope = (objective(slow + move) - objective(slow - move)) / (2 * step)
            assert contexts.grad[spot].item() == pytest.approx(slope.item(), abs=2e-5, rel=1e-4)


def test_no_gradient_reaches_weights_or_other_names() -> None:
    backbone = toy_backbone()
    contexts = random_contexts(backbone, len(CLASSES), 4).requires_grad_()
    out = backbone.encode_prompts(contexts, backbone.names(CLASSES))
    assert not backbone.text.training
    assert not any(weight.requires_grad for weight in backbone.text.parameters())
    out[1].sum().backward()
    assert all(weight.grad is None for weight in backbone.text.parameters())
    assert contexts.grad is not None
    assert contexts.grad[1].abs().min() > 0
    assert contexts.grad[[0, 2, 3, 4]].abs().max() == 0


def test_what_follows_the_eot_changes_nothing() -> None:
    backbone = toy_backbone()
    names = backbone.names(CLASSES)
    contexts = random_contexts(backbone, len(CLASSES), 4)
    room = CONTEXT_LENGTH - 1 - 4
    noise = 9 * torch.randn(len(CLASSES), room, backbone.width, generator=torch_generator(2, "x"))
    width = names.embeddings.shape[1]
    inside = torch.arange(room) < names.lengths[:, None]
    noise[:, :width] = torch.where(inside[:, :width, None], names.embeddings, noise[:, :width])
    padded = Names(names.texts, noise, names.lengths)
    out = backbone.encode_prompts(contexts, names)
    torch.testing.assert_close(backbone.encode_prompts(contexts, padded), out, atol=1e-6, rtol=0)

    alone = [
        backbone.encode_prompts(contexts[[i]], backbone.names([n])) for i, n in enumerate(CLASSES)
    ]
    torch.testing.assert_close(torch.cat(alone), out, atol=1e-6, rtol=0)


def test_plain_texts_ignore_batches_order_and_padding() -> None:
    backbone = toy_backbone()
    texts = [f"a photo of a {name}" for name in CLASSES] * 3
    tokens = backbone.tokenize(texts)
    out = backbone.encode_texts(texts)
    after = torch.arange(CONTEXT_LENGTH) > tokens.argmax(1)[:, None]
    junk = torch.where(after, 3, tokens)
    for other in (
        backbone.encode_texts(texts, batch_size=2),
        backbone.text.encode_tokens(junk),
        backbone.encode_texts(texts[::-1]).flip(0),
    ):
        torch.testing.assert_close(other, out, atol=1e-6, rtol=0)
    for row, sequence in zip(out[:3], tokens, strict=False):
        expected = slow_tower(backbone.text, backbone.text.tok(sequence), int(sequence.argmax()))
        torch.testing.assert_close(row.double(), expected, atol=2e-6, rtol=0)


def test_unified_and_class_specific_contexts_agree() -> None:
    backbone = toy_backbone()
    names = backbone.names(CLASSES)
    context = random_contexts(backbone, 4)
    unified = context.clone().requires_grad_()
    specific = context.repeat(len(CLASSES), 1, 1).requires_grad_()
    a, b = (backbone.encode_prompts(v, names) for v in (unified, specific))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    a[:, 0].sum().backward()
    b[:, 0].sum().backward()
    assert unified.grad is not None and specific.grad is not None
    torch.testing.assert_close(unified.grad, specific.grad.sum(0), atol=1e-6, rtol=1e-5)


def test_names_end_at_the_eot_and_can_be_selected() -> None:
    backbone = toy_backbone()
    names = backbone.names(["dog", "hot_air balloon"])
    assert names.texts == ("dog", "hot_air balloon")
    assert names.lengths.tolist() == [3, 5]
    assert names.embeddings.shape == (2, 5, backbone.width)
    end = backbone.text.tok.weight[EOT]
    torch.testing.assert_close(names.embeddings[0, 2], end)
    assert names.embeddings[0, 3:].abs().max() == 0
    picked = names.select(torch.tensor([1, 1, 0]))
    assert picked.texts == ("hot_air balloon", "hot_air balloon", "dog")
    torch.testing.assert_close(picked.embeddings, names.embeddings[[1, 1, 0]])
    assert picked.lengths.tolist() == [5, 5, 3]
    assert backbone.names(["dog"], period=False).lengths.tolist() == [2]


def test_prompts_that_do_not_fit_are_refused() -> None:
    backbone = toy_backbone()
    long = " ".join(["word"] * 40)
    with pytest.raises(ConfigError, match="'word word .*does not fit"):
        backbone.names(["dog", long])
    longest = backbone.names([" ".join(["word"] * (CONTEXT_LENGTH - 4))])  # SOT, context, ".", EOT
    assert backbone.encode_prompts(random_contexts(backbone, 1), longest).shape == (1, 12)
    with pytest.raises(BackboneError, match="33 positions"):
        backbone.encode_prompts(random_contexts(backbone, 2), longest)
    with pytest.raises(ConfigError, match="no class names"):
        backbone.names([])


def test_contexts_of_a_wrong_shape_are_refused() -> None:
    backbone = toy_backbone()
    names = backbone.names(["dog", "cat"])
    with pytest.raises(ConfigError, match="do not fit 2 names"):
        backbone.encode_prompts(random_contexts(backbone, 3, 4), names)
    with pytest.raises(ConfigError, match="width 16"):
        backbone.encode_prompts(torch.zeros(2, 4, 8), names)


@pytest.mark.usefixtures("bfloat16_products")
def test_training_in_bfloat16_keeps_float32_features_weights_and_evaluation() -> None:
    backbone = toy_backbone()
    names, contexts = backbone.names(CLASSES), random_contexts(backbone, len(CLASSES), 4)
    exact = backbone.encode_prompts(contexts, names)
    state = {name: value.clone() for name, value in backbone.text.state_dict().items()}
    backbone.text.train_in(torch.bfloat16)
    rounded = backbone.encode_prompts(contexts, names)
    assert rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().max() < 0.1
    with torch.no_grad():
        assert torch.equal(backbone.encode_prompts(contexts, names), exact)
    after = backbone.text.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], value) for name, value in state.items())
    backbone.text.train_in(None)
    assert torch.equal(backbone.encode_prompts(contexts, names), exact)


def test_vocabulary_ends_with_start_and_end() -> None:
    tower = toy_backbone().text
    assert tower.vocabulary == VOCABULARY
    torch.testing.assert_close(tower.sot, tower.tok.weight[VOCABULARY - 2])

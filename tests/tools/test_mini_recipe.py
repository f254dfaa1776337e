"""The recipe of the `mini` backbone: its space, its regression, its training and its files."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from focoop.clip.tokenizer import EOT, SOT, Tokenizer
from focoop.seeds import torch_generator

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "mini"))

import crossvalidate
import evaluate
import regression
import sentences
import space
import targets
import train
import wordnet

NOUNS = """\
  1 licence text
00000001 03 n 01 entity 0 002 ~ 00000002 n 0000 ~ 00000005 n 0000 | all there is
00000002 05 n 02 dog 0 domestic_dog 0 002 @ 00000001 n 0000 ~ 00000003 n 0000 | barks; "it barked"
00000003 05 n 01 Pug 0 001 @ 00000002 n 0000 | a small dog
00000004 05 n 01 husky 0 001 @ 00000002 n 0000 | a sled dog
00000005 09 n 01 husky 1 001 @ 00000001 n 0000 | a strong person
"""
INDEX = """\
  1 licence text
dog n 1 2 @ ~ 1 1 00000002
domestic_dog n 1 2 @ ~ 1 0 00000002
entity n 1 1 ~ 1 0 00000001
husky n 2 1 @ 2 0 00000005 00000004
pug n 1 1 @ 1 0 00000003
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "data.noun").write_text(NOUNS)
    with gzip.open(tmp_path / "index.noun.gz", "wt") as file:
        file.write(INDEX)
    return wordnet.read(tmp_path, ("noun",))


def draw(*shape, name="values"):
    return torch.randn(*shape, generator=torch_generator(0, "test", name))


def test_full_rank_space_gives_the_centred_logits():
    weight, feature = draw(12, 20), draw(5, 20, name="features")
    found = space.joint_space(weight, 11)  # centring 12 rows leaves rank 11
    centred = weight - weight.mean(0)
    u_norm = (centred @ centred.T).double()
    # unit(U S^0.75) has the cosines of (C C^T)^0.75
    values, vectors = torch.linalg.eigh(u_norm)
    power = vectors @ torch.diag(values.clamp_min(0) ** 0.75) @ vectors.T
    expected = power / power.diagonal().sqrt()[:, None] / power.diagonal().sqrt()
    torch.testing.assert_close(
        (found.targets @ found.targets.T).double(), expected, atol=1e-5, rtol=0
    )
    logits = feature @ found.projection @ found.targets.T
    wanted = feature @ centred.T
    ratio = logits / wanted  # one factor per class
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-2, atol=1e-3)


def test_truncated_space_keeps_the_largest_directions():
    weight = draw(12, 20)
    few, all_of_them = space.joint_space(weight, 4), space.joint_space(weight, 11)
    torch.testing.assert_close(few.projection, all_of_them.projection[:, :4])
    norms = all_of_them.projection.norm(dim=0)
    assert (norms[:-1] >= norms[1:]).all()


def test_regression_agrees_with_scikit_learn():
    x, y, new = draw(30, 5), draw(30, 3, name="y"), draw(7, 5, name="new")
    process = regression.fit(regression.rbf(x, x, 0.8), y, 0.1)
    mean, sure = process.predict(regression.rbf(new, x, 0.8))
    oracle = GaussianProcessRegressor(RBF(0.8, "fixed"), alpha=0.1, optimizer=None).fit(x, y)
    expected, deviation = oracle.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(1 - sure, deviation[:, 0] ** 2, atol=1e-5)


def test_wordnet_files_are_read(net):
    assert net.synsets["n00000002"].lemmas == ("dog", "domestic dog")
    assert net.senses["husky"] == ("n00000005", "n00000004")
    assert net.tagged == {"dog"}
    assert net.ancestors["n00000003"] == {"n00000003", "n00000002", "n00000001"}
    below = net.descendants(["n00000003", "n00000004"])
    assert below["n00000002"] == ["n00000003", "n00000004"]
    assert "n00000005" not in below
    assert targets.describe(net.synsets["n00000002"]) == "dog, domestic dog: barks"


def test_hierarchy_kernel_counts_common_ancestors(net):
    keys = list(net.synsets)
    basis = ["n00000001", "n00000002", "n00000003"]
    rows = regression.ancestry(net, keys, basis)
    pug, husky, person = (keys.index(f"n0000000{i}") for i in (3, 4, 5))
    common = rows @ rows[pug]
    assert common[husky] == pytest.approx(2 / 3)
    assert common[person] == pytest.approx(1 / 6**0.5)
    assert regression.hierarchy(rows[[pug]], rows[[pug]], 0.1).item() == pytest.approx(1)


def test_hypernyms_are_means_of_their_classes(net):
    directions = F.normalize(draw(2, 4), dim=1)
    imagenet = targets.ImageNet(["n00000003", "n00000004"], ["pug", "sled dog"], directions)
    keys, values = targets.observations(net, imagenet)
    assert set(keys) == {"n00000003", "n00000004", "n00000002", "n00000001"}
    torch.testing.assert_close(values[keys.index("n00000002")], directions.mean(0))
    assert imagenet.without([0]).names == ["sled dog"]


def test_meanings_share_by_rank(net):
    shares = targets.sense_weights(net, "husky")
    assert shares == {"n00000005": 1.0, "n00000004": 0.5}


def test_a_word_mixes_the_rows_of_its_meanings(net):
    row = {key: i for i, key in enumerate(net.synsets)}
    table = draw(len(row), 6)
    found = targets.mixtures(net, ["husky", "pug"], table, row)
    torch.testing.assert_close(
        found[0], (2 * table[row["n00000005"]] + table[row["n00000004"]]) / 3
    )
    torch.testing.assert_close(found[1], table[row["n00000003"]])


@pytest.mark.parametrize("step", [0.0, 0.25])
def test_packing_rounds_rows_and_drops_unused_tokens(tmp_path, monkeypatch, step):
    table, bias = draw(400, 300), draw(300, name="bias")
    save_file({sentences.WORD_TABLE: table, "bias": bias}, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr(sentences, "token_ids", lambda texts, folder, longest: [[0, 3], [5]])
    sentences.pack(tmp_path, tmp_path / "packed", ["two words", "one"], step)
    packed = load_file(tmp_path / "packed" / sentences.PACKED)
    torch.testing.assert_close(packed["bias"], bias.half())
    integers = packed[sentences.WORD_TABLE + ".q"].double()
    assert integers.any(1).nonzero().flatten().tolist() == [0, 3, 5]
    for i in (0, 3, 5):
        row = table[i].double()
        width = max(row.abs().max().item() / 127, step * row.std().item())
        error = integers[i] * packed[sentences.WORD_TABLE + ".s"][i].double() - row
        assert 0.4 * width < error.abs().max() < 0.501 * width


def test_names_of_two_classes_get_the_mean(net):
    directions = F.normalize(draw(2, 4), dim=1)
    imagenet = targets.ImageNet(["n00000003", "n00000004"], ["husky", "husky"], directions)
    words = targets.name_words(net, imagenet)
    assert sorted(words.texts) == ["husky", "pug"]
    expected = F.normalize(directions.mean(0), dim=0)
    torch.testing.assert_close(words.targets[words.texts.index("husky")], expected)


def fake_embed(texts, folder, **options):
    return torch.stack([F.normalize(draw(16, name=text), dim=0) for text in texts])


def test_a_word_says_its_classes_and_hypernyms(net, monkeypatch):
    monkeypatch.setattr(targets, "embed", fake_embed)
    directions = F.normalize(draw(2, 64), dim=1)
    imagenet = targets.ImageNet(["n00000003", "n00000004"], ["pug", "sled dog"], directions)
    texts = ["pug", "dog", "husky"]
    words = targets.Words(texts, torch.empty(0), torch.ones(3))
    pug, dog, husky = targets.sense_targets(net, imagenet, words, None, "cpu")
    torch.testing.assert_close(pug, directions[0])
    assert dog @ F.normalize(directions.sum(0), dim=0) > 0.95
    assert husky @ directions[1] > 0.7 > husky @ directions[0]
    found = crossvalidate.scores(torch.stack([pug, husky]), directions)
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2] == pytest.approx(((pug @ directions[0] + husky @ directions[1]) / 2).item())


def test_unknown_words_lean_on_their_own_embedding(net, monkeypatch):
    monkeypatch.setattr(targets, "embed", fake_embed)
    directions = F.normalize(draw(2, 64), dim=1)
    imagenet = targets.ImageNet(["n00000003", "n00000004"], ["pug", "sled dog"], directions)
    words = targets.Words(["Pug", "entity"], torch.empty(0), torch.ones(2))
    pug, entity = targets.plain_targets(net, imagenet, words, None, "cpu")
    assert pug @ directions[0] > 0.98
    span = torch.linalg.qr(directions.T).Q
    assert (span.T @ entity).norm() == pytest.approx(1.25**-0.5, abs=0.05)


@pytest.mark.parametrize(
    ("one", "many"), [("dog", "dogs"), ("bus", "buses"), ("fly", "flies"), ("key", "keys")]
)
def test_plurals(one, many):
    assert targets.plural(one) == many


def test_prompter_writes_what_the_tokenizer_would():
    tokenizer, templates = Tokenizer(), train.TEMPLATES + train.LONG_TEMPLATES
    prompter = train.Prompter("cpu", templates)
    words = ["dog", "american black bear", "zyzzyva"]
    tokens, lengths = train.padded([tokenizer.encode(word) for word in words])
    for number, template in enumerate(templates):
        made, ends = prompter(tokens, lengths, torch.full((3,), number))
        expected = tokenizer([template.format(word) for word in words])[:, : made.shape[1]]
        assert torch.equal(made, expected)
        assert torch.equal(ends, expected.argmax(1))
        assert (made[:, 0] == SOT).all() and (made.max(1).values == EOT).all()


def test_rate_is_that_of_a_one_cycle_schedule():
    optimiser = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], 2e-3)
    oracle = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=101)
    rates = []
    for _ in range(100):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        oracle.step()
    ours = [train.one_cycle(step / 100, 2e-3) for step in range(100)]
    # the warm-up of the oracle ends one step earlier
    np.testing.assert_allclose(ours, rates, atol=8e-5)


@pytest.mark.parametrize("contrast", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_training_learns_a_tiny_vocabulary_and_its_file_is_read(tmp_path, contrast):
    words = ["dog", "cat", "house", "tree"]
    tokens, lengths = train.padded([Tokenizer().encode(word) for word in words])
    directions = F.normalize(draw(4, 256), dim=1)
    corpus = train.Corpus(tokens, lengths, directions, torch.ones(4), directions)
    tower = train.new_tower(torch_generator(0, "test", "tower"))
    history = train.train(
        tower,
        corpus,
        steps=24,
        batch_size=8,
        rate=2e-3,
        contrast=contrast,
        seed=0,
        log_every=6,
        seconds=600.0,
    )
    assert len(history) == 4
    assert history[-1] < 0.5 * history[0]
    tower.freeze()
    held = {word: i for i, word in enumerate(words)}
    assert train.held_out_scores(tower, held, directions)["direction_to_text"] == 1.0
    path = tmp_path / "text_tower.safetensors"
    train.save_tower(tower, path)
    packaged = Path(evaluate.__file__).parents[2] / "focoop/assets/mini/text_tower.safetensors"
    layout = {name: (value.shape, value.dtype) for name, value in load_file(packaged).items()}
    assert {n: (v.shape, v.dtype) for n, v in load_file(path).items()} == layout
    again = evaluate.load_tower(path)
    texts = Tokenizer(32)(["a photo of a dog."])
    torch.testing.assert_close(
        again.encode_tokens(texts), tower.encode_tokens(texts), atol=5e-3, rtol=0
    )


def test_divergence_vanishes_at_the_target_only():
    wanted, other = F.normalize(draw(6, 8), dim=1), F.normalize(draw(6, 8, name="o"), dim=1)
    assert train.loss_of(wanted, wanted, wanted, 0.1).item() == pytest.approx(0, abs=1e-5)
    more = train.loss_of(other, wanted, wanted, 0.1) - train.loss_of(other, wanted, wanted, 0.0)
    p = torch.softmax(20 * wanted @ wanted.T, 1)
    q = torch.softmax(20 * other @ wanted.T, 1)
    divergence = (p * (p.log() - q.log())).sum(1).mean()
    assert more.item() == pytest.approx(0.1 * divergence.item(), rel=1e-4)


@pytest.mark.shared
def test_evaluation_gives_the_published_figure(shared_dir):
    data = evaluate.load_features(shared_dir / "features" / "oxford_pets.safetensors")
    tower = evaluate.load_tower(shared_dir / "mini" / "text_tower.safetensors")
    assert evaluate.zero_shot(tower, data) == pytest.approx(51.19, abs=0.1)

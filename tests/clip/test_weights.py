"""Finding, fetching, checking and reading weight files, and the errors of a bare machine."""

import hashlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub
import open_clip
import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from open_clip.pretrained import _PRETRAINED
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from focoop.clip import load_backbone, weights
from focoop.clip.openclip import OpenClipBackbone, build, load_openclip
from focoop.errors import BackboneError
from focoop.seeds import torch_generator

CONFIG: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}
TAG = {
    "hf_hub": "someone/tiny/",
    "quick_gelu": True,
    "mean": (0.1, 0.2, 0.3),
    "std": (1.0, 1.0, 1.0),
}


@pytest.fixture(autouse=True)
def tiny_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """open_clip knows a model `tiny` with a tag `released`; nothing is cached on this machine."""
    monkeypatch.setitem(_MODEL_CONFIGS, "tiny", CONFIG)
    monkeypatch.setitem(_PRETRAINED, "tiny", {"released": dict(TAG)})
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, name: None)
    monkeypatch.setenv("HOME", str(tmp_path))  # with the cache of downloads
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def closed_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub address at which this machine refuses connections."""
    url = "http://127.0.0.1:9/{}/{}"
    monkeypatch.setattr(huggingface_hub, "hf_hub_url", lambda repo, name: url.format(repo, name))


def network(quick_gelu: bool = False) -> Any:
    return build(CONFIG, quick_gelu).eval()


def texts_of(model: Any) -> Tensor:
    tokens = open_clip.SimpleTokenizer()(["a cat.", "two dogs"])
    features: Tensor = model.encode_text(tokens, normalize=True).detach()
    return features


def save(model: nn.Module, path: Path) -> Path:
    state = model.state_dict()
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.name == "training.pt":
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    elif path.name == "script.pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, OpenAI's files use it
            model.register_buffer("input_resolution", torch.tensor(32))
            tokens = torch.zeros(1, 77, dtype=torch.int64)
            torch.jit.save(torch.jit.trace(model, (torch.zeros(1, 3, 32, 32), tokens)), path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("name", ["a.pt", "a.bin", "a.safetensors", "training.pt", "script.pt"])
def test_local_files_of_every_kind(name: str, tmp_path: Path) -> None:
    model = network()
    expected = texts_of(model)
    path = save(model, tmp_path / name)
    ours = load_backbone("openclip:tiny:custom", weights=path)
    found = ours.encode_texts(["a cat.", "two dogs"])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_half_precision_files_load_as_float32(tmp_path: Path) -> None:
    path = save(network().half(), tmp_path / "half.safetensors")
    ours = load_openclip("tiny", "custom", weights=path)
    assert {p.dtype for p in ours.text.parameters()} == {torch.float32}


def test_a_tag_sets_activation_and_preprocessing_of_a_local_file(tmp_path: Path) -> None:
    model = network(quick_gelu=True)
    path = save(model, tmp_path / "a.safetensors")
    released = load_openclip("tiny", "released", weights=path)
    custom = load_openclip("tiny", "custom", weights=path)
    assert isinstance(released, OpenClipBackbone)
    assert released.text.shape.activation == "quick_gelu"
    assert custom.text.shape.activation == "gelu"
    batch = torch.randn(2, 3, 32, 32, generator=torch_generator(0, "images"))
    torch.testing.assert_close(
        released.encode_images(batch).pooled, model.encode_image(batch, normalize=True)
    )
    white = Image.new("RGB", (50, 40), "white")
    expected = torch.tensor([0.9, 0.8, 0.7])[:, None, None].expand(3, 32, 32)
    torch.testing.assert_close(released.preprocess(white), expected)
    assert released.fingerprint != custom.fingerprint
    assert released.fingerprint == load_openclip("tiny", "released", weights=path).fingerprint


def test_loading_draws_nothing_from_the_global_generator(tmp_path: Path) -> None:
    path = save(network(), tmp_path / "a.pt")
    before = torch.random.get_rng_state()
    load_openclip("tiny", "custom", weights=path)
    assert torch.equal(before, torch.random.get_rng_state())


def test_openai_weights_get_their_activation_from_the_tag() -> None:
    assert weights.source_of("ViT-B-16", "openai").config["quick_gelu"]
    assert "quick_gelu" not in weights.source_of("ViT-B-16", "laion2b_s34b_b88k").config


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04 damaged archive"])
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_damaged_files_are_refused(content: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BackboneError, match=rf"{name} does not hold the weights .*sha256"):
        load_openclip("tiny", "custom", weights=path)


class Malice:
    """Runs code when a pickle is read without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("owned"),))


def test_pickled_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Malice()}, "bad.pt")
    with pytest.raises(BackboneError, match="does not hold"):
        load_openclip("tiny", "custom", weights=Path("bad.pt"))
    assert not Path("owned").exists()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    smaller = {**CONFIG, "text_cfg": {**CONFIG["text_cfg"], "width": 16}}
    path = save(build(smaller, quick_gelu=False), tmp_path / "a.pt")
    with pytest.raises(BackboneError, match="check the model's name"):
        load_openclip("tiny", "custom", weights=path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"no weight file .*absent\.pt"):
        load_openclip("tiny", "custom", weights=tmp_path / "absent.pt")


def test_a_released_name_must_have_the_released_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(network(), tmp_path / "tiny.pt")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    tag = {**TAG, "url": f"https://example.org/{digest}/tiny.pt"}
    monkeypatch.setitem(_PRETRAINED["tiny"], "released", tag)
    load_openclip("tiny", "released", weights=path)
    tag["url"] = f"https://example.org/{'0' * 64}/tiny.pt"
    with pytest.raises(BackboneError, match=f"sha256 is {digest}, not 0000.*openclip:tiny:custom"):
        load_openclip("tiny", "released", weights=path)


def test_a_verified_file_in_the_url_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_hub: None
) -> None:
    cache = tmp_path / ".cache" / "clip"
    cache.mkdir(parents=True)
    path = save(network(), cache / "tiny.pt")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    tag = {**TAG, "url": f"https://example.org/{digest}/tiny.pt"}
    monkeypatch.setitem(_PRETRAINED["tiny"], "released", tag)
    load_openclip("tiny", "released")
    path.write_bytes(b"damaged")
    with pytest.raises(BackboneError, match="no weights for openclip:tiny:released"):
        load_openclip("tiny", "released")


def test_a_file_of_the_hub_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preferred name is absent there, so the other one is taken."""
    model = network(quick_gelu=True)
    path = save(model, tmp_path / "open_clip_pytorch_model.bin")

    def metadata(url: str, timeout: float) -> None:
        if not url.endswith(path.name):
            raise huggingface_hub.errors.EntryNotFoundError("absent")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: str(tmp_path / name))
    ours = load_openclip("tiny", "released")
    torch.testing.assert_close(ours.encode_texts(["a cat.", "two dogs"]), texts_of(model))


def check_help(message: str) -> None:
    digest = "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f"
    assert f"sha256: {digest}" in message
    assert f"/{digest}/ViT-B-16.pt" in message
    assert "timm/vit_base_patch16_clip_224.openai" in message
    assert "open_clip_model.safetensors" in message
    assert "--weights weights/ViT-B-16.pt" in message
    assert "backbone.weights" in message


def test_without_network_the_error_says_what_to_fetch(closed_hub: None) -> None:
    start = time.monotonic()
    with pytest.raises(BackboneError) as caught:
        load_backbone("openclip:ViT-B/16:openai")
    assert time.monotonic() - start < 15  # its own retries take longer
    check_help(str(caught.value))


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda url, timeout: time.sleep(20)
    )
    start = time.monotonic()
    with pytest.raises(BackboneError, match="no answer") as caught:
        weights.fetch(weights.source_of("ViT-B-16", "openai"), patience=0.2)
    assert time.monotonic() - start < 7  # the patience of a command is 8 seconds
    check_help(str(caught.value))


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", None)
    with pytest.raises(BackboneError, match="HF_HUB_OFFLINE") as caught:
        load_openclip("ViT-B-16", "openai")
    check_help(str(caught.value))


def test_every_listed_tag_has_a_place_to_fetch_from(closed_hub: None) -> None:
    for model, tag in open_clip.list_pretrained():
        source = weights.source_of(model, tag)
        assert source.repo.count("/") == 1
        assert len(source.files) == 2
        assert source.repo in str(weights.missing(source, "test"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openclip:ViT-B16:openai", "did you mean ViT-B-16"),
        ("openclip:vit-b-16:openai", "did you mean ViT-B-16"),
        ("openclip:ViT-B-16:openia", "did you mean openai.*custom with --weights"),
        ("openclip:ViT-S-16:openai", "lists none for ViT-S-16"),
        ("openclip:ViT-B-16:custom", "with --weights FILE"),
        ("openclip:ViT-B-16-SigLIP:webli", "both directions.*RN50"),
        ("openclip:MobileCLIP-S1:datacompdr", "both directions"),
        ("openclip:coca_ViT-B-32:laion2b_s13b_b90k", "class token"),
        ("openclip:roberta-ViT-B-32:laion2b_s12b_b32k", "Hugging Face encoder"),
        ("openclip:ViT-H-14-worldwide:metaclip2_worldwide", "tokenizer is not CLIP's"),
    ],
)
def test_names_that_cannot_be_loaded_say_why(name: str, message: str) -> None:
    with pytest.raises(BackboneError, match=message):
        load_backbone(name)


def script(path: Path, quick_gelu: bool) -> Path:
    """An archive as OpenAI's, with the numbers it holds beside its weights."""
    model = network(quick_gelu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in (("input_resolution", 32), ("context_length", 77), ("vocab_size", 9)):
            if hasattr(model, name):
                delattr(model, name)
            model.register_buffer(name, torch.tensor(value))
        tokens = torch.zeros(1, 77, dtype=torch.int64)
        torch.jit.save(torch.jit.trace(model, (torch.zeros(1, 3, 32, 32), tokens)), path)
    return path


def test_an_archive_under_another_tag_does_not_get_the_wrong_activation(tmp_path: Path) -> None:
    path = script(tmp_path / "a.pt", quick_gelu=True)
    with pytest.raises(BackboneError, match=r"QuickGELU.*openclip:tiny:openai"):
        load_openclip("tiny", "custom", weights=path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load_openclip("tiny", "released", weights=path)  # a tag with that activation
    assert not [one for one in told if "TorchScript" in str(one.message)]
    with pytest.raises(BackboneError, match=r"with GELU.*openclip:tiny:custom"):
        load_openclip("tiny", "released", weights=script(tmp_path / "b.pt", quick_gelu=False))


def test_the_record_beside_weights_of_the_hub_must_name_the_same_activation(tmp_path: Path) -> None:
    path, record = save(network(), tmp_path / "a.safetensors"), tmp_path / "open_clip_config.json"
    record.write_text(json.dumps({"model_cfg": {"quick_gelu": True}}))
    with pytest.raises(BackboneError, match=r"with QuickGELU .open_clip_config.json"):
        load_openclip("tiny", "custom", weights=path)
    load_openclip("tiny", "released", weights=path)  # a tag with that activation
    record.write_text(json.dumps({"model_cfg": {"quick_gelu": False}}))
    with pytest.raises(BackboneError, match=r"with GELU .open_clip_config.json"):
        load_openclip("tiny", "released", weights=path)
    for text in ("", "[]", "{}", '{"model_cfg": {}}'):  # it names none: taken as it is
        record.write_text(text)
        load_openclip("tiny", "custom", weights=path)
        load_openclip("tiny", "released", weights=path)


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "training.pt"])
def test_weights_for_another_size_of_images_are_not_stretched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = {**CONFIG, "vision_cfg": {**CONFIG["vision_cfg"], "image_size": 64}}
    monkeypatch.setitem(_MODEL_CONFIGS, "tiny-64", larger)
    path = save(network(), tmp_path / name)
    with pytest.raises(BackboneError, match=r"17 positions .* openclip:tiny-64:custom has 65"):
        load_openclip("tiny-64", "custom", weights=path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(number: float, tmp_path: Path) -> None:
    model = network()
    model.visual.conv1.weight.data[0, 0, 0, 0] = number
    with pytest.raises(BackboneError, match=r"NaN or infinity.*visual\.conv1\.weight"):
        load_openclip("tiny", "custom", weights=save(model, tmp_path / "a.safetensors"))


def test_folders_of_the_hub_are_read_or_named(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    with pytest.raises(BackboneError, match="holds none of .*it holds: nothing"):
        load_openclip("tiny", "custom", weights=folder)
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for given in (folder, folder / "model.safetensors.index.json"):
        with pytest.raises(BackboneError, match="index of weights in 2 files"):
            load_openclip("tiny", "custom", weights=given)
    model = network()
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    found = load_openclip("tiny", "custom", weights=folder)
    direct = load_openclip("tiny", "custom", weights=folder / "open_clip_pytorch_model.bin")
    assert found.fingerprint == direct.fingerprint


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "pointer of Git LFS"),
        (b"<!doctype html>", "is a text and holds no weights"),
        (b'{"architectures": []}', "is a text and holds no weights"),
    ],
)
def test_files_that_are_no_weights_are_named(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(BackboneError, match=told):
        load_openclip("tiny", "custom", weights=path)

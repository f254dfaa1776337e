"""The settings FOCoOp+ was chosen on: no test image, and no domain that was kept for the test."""

import json
import sys
from pathlib import Path

import pytest
import torch

from focoop.config import loading
from focoop.features.storage import read_file, write_file
from focoop.seeds import torch_generator

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import validation_settings  # noqa: E402 (a script, found by its folder)


def write_features(path: Path, metadata: dict[str, str], splits: int) -> torch.Tensor:
    """Twelve images of two classes, splits or domains in turn."""
    pooled = torch.randn(12, 3, generator=torch_generator(0, path.name)).half()
    labels, split = torch.arange(12).int() // 6, (torch.arange(12) % splits).to(torch.int8)
    classes = {"classes": json.dumps(["a", "b"]), **metadata}
    write_file(path, {"pooled": pooled, "labels": labels, "split": split}, classes)
    return split


def test_test_rows_and_the_kept_domain_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, out = tmp_path / "shared" / "features", tmp_path / "out"
    features.mkdir(parents=True)
    domains = ["art_painting", "cartoon", "photo", "sketch"]
    files = {"dtd": ({}, 2), "pacs": ({"domains": json.dumps(domains)}, 4)}
    for name, (metadata, splits) in files.items():
        write_features(features / f"{name}.safetensors", metadata, splits)
    monkeypatch.setattr(validation_settings, "CLASSES", {"dtd": 2})
    monkeypatch.setattr(
        validation_settings, "DOMAINS", {"pacs-photo": ("pacs", ("cartoon", "sketch"))}
    )
    monkeypatch.setattr(sys, "argv", ["tool", str(features), str(out)])
    validation_settings.main()
    for name, gone in (("dtd", 1), ("pacs", domains.index("photo"))):
        before, _ = read_file(features / f"{name}.safetensors")
        after, _ = read_file(out / f"{name}.safetensors")
        kept = before["split"] != gone
        assert 0 < len(after["split"]) < 12 and not (after["split"] == gone).any()
        assert all(torch.equal(after[key], before[key][kept]) for key in before)
    dtd = loading.load(out / "dtd.toml")
    assert dtd.data.validation == 2 and dtd.data.id == f"file:{out.resolve()}/dtd.safetensors"
    assert dtd.data.ood == loading.load(ROOT / "configs/settings/dtd.toml").data.validation_ood
    assert dtd.data.drop_classes == ()  # caltech101 alone has a folder that is no class
    for domain in ("cartoon", "sketch"):
        pacs = loading.load(out / f"pacs-{domain}.toml")
        assert (pacs.partition.leave_out, pacs.partition.clients) == (domain, 2)
        assert not any("dtd" in spec or "sun" in spec for spec in pacs.data.ood)


def test_every_setting_and_domain_it_names_exists() -> None:
    for name in (*validation_settings.CLASSES, *validation_settings.DOMAINS):
        assert (validation_settings.SETTINGS / f"{name}.toml").exists()
    for base, (_, left_out) in validation_settings.DOMAINS.items():
        assert loading.load(validation_settings.SETTINGS / f"{base}.toml").partition.leave_out
        assert all(
            (validation_settings.SETTINGS / f"{base.split('-')[0]}-{one}.toml").exists()
            for one in left_out
        )

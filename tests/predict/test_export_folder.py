"""Exported models: every file has a checksum, and what differs is named."""

import json
import random
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from focoop.caching import sealed
from focoop.errors import RunError
from focoop.predict import check_sums, read_model
from focoop.predict.export_folder import CARD, SUMS, write_sums
from tests.predict.test_model import calibrated, model_of
from tests.toy_command import call


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    return model_of("focoop", calibrated(0.1, 0.5)).save(folder)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "model")
    return tmp_path / "model"


def test_single_bits_of_a_model_are_named_with_their_file(folder: Path) -> None:
    file, draw = folder / "model.safetensors", random.Random(0)
    raw = file.read_bytes()
    for _ in range(40):
        place = draw.randrange(len(raw))
        file.write_bytes(
            raw[:place] + bytes([raw[place] ^ (1 << draw.randrange(8))]) + raw[place + 1 :]
        )
        with pytest.raises(RunError, match=r"model\.safetensors.*export it again"):
            read_model(folder)


def test_all_files_are_compared_and_a_card_may_be_edited(folder: Path) -> None:
    names = ["README.md", "config.json", "model.safetensors"]
    assert sorted(check_sums(folder)) == names
    done = call("model", "check", str(folder))
    assert done.exit_code == 0 and "config.json" in done.stdout
    listed = subprocess.run(["sha256sum", "-c", SUMS], cwd=folder, capture_output=True, timeout=60)
    assert listed.returncode == 0 and listed.stdout.count(b": OK") == 3
    card = folder / CARD
    card.write_text(card.read_text().replace("license: other", "license: mit"))
    assert sorted(check_sums(folder)) == names[1:]
    assert "README.md was edited" in call("model", "check", str(folder)).stderr
    write_sums(folder, [CARD])
    assert sorted(check_sums(folder)) == names
    (folder / "model.onnx").write_bytes(b"of another model")
    with pytest.raises(RunError, match=r"model\.onnx is not in SHA256SUMS"):
        check_sums(folder)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").unlink()
    found = call("model", "check", str(folder))
    assert found.exit_code == 6 and "README.md is gone" in found.stderr
    assert "config.json is damaged" in found.stderr and "export it again" in found.stderr
    (folder / SUMS).write_text("nothing")
    with pytest.raises(RunError, match="SHA256SUMS is damaged"):
        check_sums(folder)
    (folder / SUMS).unlink()
    with pytest.raises(RunError, match="export it again"):
        check_sums(folder)
    with pytest.raises(RunError, match="no exported model"):
        check_sums(folder.parent)


def test_a_model_of_an_earlier_focoop_opens_with_a_note_and_gains_checksums(folder: Path) -> None:
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as stored:
        tree = json.loads(stored.metadata()["focoop"])
    newer = {"focoop": json.dumps(sealed({**tree, "format": 9}))}
    save_file(load_file(file), file, newer)
    with pytest.raises(RunError, match="newer focoop .format 9; this one reads up to 2.*install"):
        read_model(folder)
    for name in ("sum", "sums"):
        del tree[name]
    for form, reason in ((1, None), (2, "damaged"), (9, "damaged")):
        save_file(load_file(file), file, {"focoop": json.dumps({**tree, "format": form})})
        if reason is None:
            with pytest.warns(UserWarning, match=r"model\.safetensors has no checksums"):
                model = read_model(folder)
        else:
            with pytest.raises(RunError, match=reason):
                read_model(folder)
    model.save(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_model(folder).calibration is not None and len(check_sums(folder)) == 3


def test_saving_anew_removes_the_graph_of_the_model_before(folder: Path) -> None:
    for name in ("model.onnx", "model.onnx.data"):
        (folder / name).write_bytes(b"of the model before")
    read_model(folder).save(folder)
    assert not list(folder.glob("model.onnx*")) and len(check_sums(folder)) == 3

"""A site's process, one per message, loads what the message needs and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.config.writing import to_toml
from tests.flower.federations import toy_config
from tests.flower.test_runners import ROOT

SCRIPT = """
import sys
from pathlib import Path

HEAVY = {"open_clip", "timm", "transformers", "PIL", "matplotlib", "scipy", "sklearn", "datasets"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import flwr.app, flwr.clientapp, torch, safetensors.torch
before = {name.split(".")[0] for name in sys.modules}
from focoop.flower import in_process
from focoop.flower.site import client
new = {name.split(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
from focoop.config.loading import load
folder = Path(sys.argv[1])
wanted = load(folder / "run.toml", [])
in_process.run(wanted, folder / "run", 3, state=folder / "state")
backbone = client._scenario(wanted).backbone
print(sorted(name for name in new if not name.startswith("_")))
print("trunk" in vars(backbone), (HEAVY | {"torch._dynamo"}) & set(sys.modules))
"""


@pytest.mark.slow
def test_a_message_is_answered_without_image_towers_and_other_heavy_packages(
    tmp_path: Path,
) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.rounds=1")
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported, loaded = done.stdout.splitlines()[-2:]
    # flwr itself brings cryptography, which signs a site's claim.
    assert set(eval(imported)) <= {"focoop", "cryptography", "bcrypt", "flwr"}
    assert loaded == "False set()"

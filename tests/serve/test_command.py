"""The command `focoop serve`: what it refuses, and a server as a process from start to stop."""

import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from focoop.errors import ConfigError, MissingExtra
from focoop.serve import KeyFile, Limits, serve
from tests.serve.fake_model import picture
from tests.toy_command import FAST, ROOT, TINY, call


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtra, match=r"pip install 'focoop\[serve\]'"):
        serve(["runs/x"])
    told = call("serve", "runs/x")
    assert told.exit_code == MissingExtra.exit_code and "focoop[serve]" in told.stderr


def test_other_machines_need_keys() -> None:
    told = call("serve", "runs/x", "--host", "0.0.0.0", "--port", "0")
    assert told.exit_code == ConfigError.exit_code and "--add-key" in told.stderr


def test_a_key_is_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    told = call("serve", "--keys", str(path), "--add-key", "ward-7")
    assert told.exit_code == 0 and KeyFile(path).owner(told.stdout.strip()) == "ward-7"
    assert told.stdout.strip() not in path.read_text()
    assert call("serve", "--add-key", "x").exit_code == 2
    assert call("serve").exit_code == 2


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    told = call("serve", str(tmp_path), "--port", "0")
    assert told.exit_code == 6 and "holds no model" in told.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = call("serve", str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert told.exit_code == 2 and "choose another --port" in told.stderr


class Process:
    """A server in a process of its own."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "focoop", "serve", "--port", "0", *words]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        killer = threading.Timer(120, self.process.kill)
        killer.start()
        line = ""
        while "open http" not in line:
            line = self.process.stderr.readline()
            assert line, "the server ended"
        killer.cancel()
        match = re.search(r"http://\S+", line)
        assert match is not None
        self.address = match[0]

    def ask(self, path: str, **fields: Any) -> tuple[int, Any]:
        boundary, parts = "b0undary", b""
        for name, value in fields.items():
            file = '; filename="a.png"' if isinstance(value, bytes) else ""
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
            content = value if isinstance(value, bytes) else str(value).encode()
            parts += head.encode() + content + b"\r\n"
        body = parts + f"--{boundary}--\r\n".encode() if fields else None
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"} if fields else {}
        request = urllib.request.Request(self.address + path, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "small"
    told = call("run", "demo", *FAST, "--out", str(folder), "--untuned")
    assert told.exit_code == 0, told.output
    return folder


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Process]:
    process = Process(str(run), f"again={run}", "--wait", "300")
    yield process
    if process.process.poll() is None:
        process.process.kill()
        process.process.communicate()


@pytest.mark.slow
def test_a_process_answers_and_ends_when_told(server: Process, run: Path) -> None:
    status, models = server.ask("v1/models")
    assert status == 200 and [one["name"] for one in models["models"]] == ["small", "again"]
    image = picture((200, 30, 30), (64, 64))
    _, found = server.ask("v1/predict", images=image, client="1", top=3)
    answer = found["predictions"][0]
    assert len(answer["top"]) == 3 and found["client"] == "1"
    from PIL import Image

    import focoop

    model = focoop.load_model(run)
    (mine,) = model.predict([Image.open(io.BytesIO(image))], client=1, top=3)
    assert answer["top"][0]["label"] == mine.top[0].label
    assert answer["score"] == pytest.approx(mine.score, abs=1e-4)
    assert server.ask("v1/explain", images=image, label=mine.top[0].label)[1]["rows"] > 1


@pytest.mark.slow
def test_what_is_under_way_is_answered_before_the_end(server: Process) -> None:
    """An image waits 0.3 s for others: the signal comes meanwhile."""
    answers: list[int] = []
    image = picture((20, 30, 200), (64, 64))
    asked = threading.Thread(
        target=lambda: answers.append(server.ask("v1/predict", images=image)[0])
    )
    asked.start()
    time.sleep(0.15)
    code, errors = server.stop()
    asked.join(60)
    assert (code, answers) == (0, [200]), errors
    assert "Traceback" not in errors


def test_limits_of_the_command_are_those_of_python() -> None:
    """The defaults of the options are the defaults of `Limits`, so that both serve alike."""
    import inspect

    from focoop.cli.serve import serve as command

    options = {name: one.default for name, one in inspect.signature(command).parameters.items()}
    limits = Limits()
    assert (options["batch"], options["queue"], options["seconds"]) == (
        limits.batch,
        limits.queue,
        limits.seconds,
    )
    assert (options["wait"], options["max_images"]) == (1000 * limits.wait, limits.images)
    assert options["max_megapixels"] * 1e6 == limits.pixels
    assert options["max_megabytes"] * 1e6 == limits.image_bytes


def test_the_container_asks_for_keys_and_can_write_nowhere() -> None:
    yaml = pytest.importorskip("yaml")
    (service,) = yaml.safe_load((ROOT / "deploy" / "serve.compose.yaml").read_text())[
        "services"
    ].values()
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and "tmpfs" not in service
    assert all(text.endswith(":ro") for text in service["volumes"])
    assert all(text.startswith("127.0.0.1:") for text in service["ports"])
    build = service["build"]
    stages = (ROOT / build["dockerfile"]).read_text().split("\nFROM ")
    (recipe,) = [text for text in stages if text.startswith(f"${{BASE}} AS {build['target']}\n")]
    assert recipe.index("\nUSER 10001\n") < recipe.index("ENTRYPOINT")
    assert "-r /wheel/serve.txt" in recipe and "/ready" in recipe
    words = json.loads(re.findall(r"^CMD (\[.*\])$", recipe, flags=re.M)[-1])
    assert words[1:3] == ["--host", "0.0.0.0"] and "--keys" in words
    told = call("serve", *words, "--port", "0")  # its folders are not here
    assert told.exit_code == 2 and "cannot read the keys" in told.stderr


@pytest.mark.slow
def test_the_demo_ends_with_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four small runs; then the page on the last, calibrated, without training again."""
    from focoop.serve import running

    served: list[tuple[Any, Any]] = []
    monkeypatch.setattr(running, "serve", lambda models, **given: served.append((models, given)))
    few = [word for word in TINY if "rounds" not in word]
    options = [*few, "--set=federation.rounds=1", "--set=negatives.count=10"]
    told = call("demo", "--out", str(tmp_path / "d"), *options)
    assert told.exit_code == 0 and f"demo --serve --out {tmp_path / 'd'}" in told.stdout
    said = " ".join(told.stdout.split())
    assert "own-other area: under the curve of accuracy on other classes" in said
    assert "dtd_32px, sun_32px: foreign images, textures and scenes" in said
    assert "data check folder:PATH" in said and "run --set data.id=folder:PATH" in said
    assert served == []
    stamp = (tmp_path / "d" / "focoop_plus" / "state.safetensors").stat().st_mtime_ns
    told = call("demo", "--out", str(tmp_path / "d"), *options, "--serve", "--port", "0")
    assert told.exit_code == 0, told.output
    ((models, given),) = served
    assert models == [tmp_path / "d" / "focoop_plus"]
    assert given["open_share"] == 0.5
    assert (models[0] / "calibration.json").is_file()
    assert (models[0] / "state.safetensors").stat().st_mtime_ns == stamp

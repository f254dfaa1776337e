"""`focoop serve` under load on loopback: latency, images a second, memory, and more than it can do.

One image per request, from `wrk` in a process of its own, at 1, 16 and 64 connections. A server
that encodes requests together stands against one that encodes each alone (`--batch 1 --wait 0`), in
turns within one run, and against plain torch in a process without HTTP: the floor. Other work on
the machine moves all of them, so ratios are what to read; images per second of a processor, which
other work moves little, stand beside images per second.

Batches save on a CPU what the image tower saves, and that is told too: images a second of a core at
1, 2 and 8 images at a time. A server that encodes one by one has the tower share its cores for each
image; batches give every core images of its own.

Memory (`--memory`): requests against a server whose image tower answers from a cache, so that tens
of thousands fit into minutes; everything else (HTTP, decoding, batches, decision) is as it is. With
`--tower` the tower works too, as in earnest: 50,000 requests take a quarter of an hour.
Overload: 64 connections against a queue of 8; all answers must be 200 or 503, and the server must
live.

`python benchmarks/serving.py --turns 3` takes about four minutes on two cores, four more with
`--memory`; it needs wrk (apt-get install wrk).
"""

import argparse
import io
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from process_meter import look

CONNECTIONS = (1, 16, 64)
TINY = ("partition.clients=2", "partition.shots=1", "federation.rounds=1", "federation.epochs=1",
        "data.corrupted=[]", "data.ood=[]", "method.name=promptfl")  # fmt: skip
BOUNDARY = "focoop-benchmark"
LUA = """wrk.method = "POST"
wrk.headers["Content-Type"] = "multipart/form-data; boundary={boundary}"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
"""


def image(side: int = 96) -> bytes:
    from PIL import Image

    picture = Image.effect_mandelbrot((side, side), (-2.2, -1.3, 0.8, 1.3), 60).convert("RGB")
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)
    return file.getvalue()


def body(content: bytes) -> bytes:
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'
    )
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def environment() -> dict[str, str]:
    """Threads that spin while they wait make a shared machine several times slower (Makefile)."""
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}


@contextmanager
def server(*command: str) -> Iterator[tuple[str, int]]:
    """Address and process of a server, which is stopped at the end."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the server ended before it listened")
            found = re.search(r"http://\S+", line)
        # A server whose warnings nobody reads would stand still once the pipe is full.
        reader = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr))
        reader.start()
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)
    reader.join()
    assert process.returncode == 0, f"the server ended with {process.returncode}"


def focoop(run: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "focoop", "serve", str(run), "--port", "0", *options]


def wrk(
    address: str, folder: Path, connections: int, seconds: float, process: int = 0
) -> dict[str, float]:
    """What `wrk` measured: requests a second, milliseconds at 50 and 99%, refusals."""
    used = look(process, set())[0] if process else 0.0
    script = folder / "post.lua"
    script.write_text(LUA.format(boundary=BOUNDARY, body=folder / "body"))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "60s", "--latency"]
    done = subprocess.run(
        [*command, "-s", str(script), f"{address}v1/predict"],
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=True,
    ).stdout
    found = {f"p{share}": milliseconds(done, share) for share in (50, 99)}
    total = int(re.search(r"(\d+) requests in", done)[1])  # type: ignore[index]
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", done)
    lost = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", done)
    found["refused"] = int(refused[1]) if refused else 0
    found["lost"] = sum(map(int, lost.groups())) if lost else 0
    found["requests"] = total
    found["per_core"] = total / max(look(process, set())[0] - used, 1e-9) if process else 0.0
    found["per_second"] = float(re.search(r"Requests/sec:\s+([\d.]+)", done)[1])  # type: ignore[index]
    return found


def milliseconds(text: str, share: int) -> float:
    value, unit = re.search(rf"^\s+{share}%\s+([\d.]+)(us|ms|s|m)\s*$", text, re.M).groups()  # type: ignore[union-attr]
    return float(value) * {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}[unit]


def floor(run: Path, seconds: float) -> dict[str, float]:
    """Images a second of decoding, encoding and deciding in a loop, without a server."""
    from focoop.data import rgb_from_bytes
    from focoop.serve.loading import load

    model, content, rates = load(run), image(), {}
    for size in (1, 2, 8):
        prepared = [model.prepare(rgb_from_bytes(content, pixels=10**7))] * size
        model.encode(prepared)  # warm
        count, began, used = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            prepared = [model.prepare(rgb_from_bytes(content, pixels=10**7)) for _ in range(size)]
            model.decide(model.encode(prepared), client=0, open_share=None, top=5)
            count += size
        rates[f"by {size}"] = count / (time.perf_counter() - began)
        rates[f"by {size}, a core"] = count / (time.process_time() - used)
    return rates


def speed(run: Path, folder: Path, seconds: float, turns: int) -> None:
    """The table of latencies, batched and not, and their ratios."""
    (folder / "body").write_bytes(body(image()))
    told = subprocess.run(
        [sys.executable, __file__, "--floor", str(run), "--seconds", str(seconds)],
        capture_output=True, text=True, check=True, timeout=seconds * 6 + 120, env=environment(),
    ).stdout  # fmt: skip
    plain = json.loads(told)
    ways = {"batched": (), "one by one": ("--batch", "1", "--wait", "0")}
    print("| connections | way | p50 ms | p99 ms | images/s | images/s of a core |")
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        servers = {
            way: stack.enter_context(server(*focoop(run, *more))) for way, more in ways.items()
        }
        for address, _ in servers.values():
            wrk(address, folder, 4, 3)  # warm
        for connections in CONNECTIONS:
            found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(turns):
                for way, (address, process) in servers.items():
                    found[way].append(wrk(address, folder, connections, seconds, process))
            columns = ("p50", "p99", "per_second", "per_core")
            rows = {way: [middle(found[way], name) for name in columns] for way in ways}
            for way, values in rows.items():
                assert not sum(one["refused"] + one["lost"] for one in found[way])
                print(f"| {connections} | {way} | " + " | ".join(f"{x:.1f}" for x in values) + " |")
            ratios = [a / b if b else math.nan for a, b in zip(*rows.values(), strict=True)]
            print("| | ratio | " + " | ".join(f"{x:.2f}" for x in ratios) + " |", flush=True)
    for way, rate in plain.items():
        print(f"plain torch, images {way}: {rate:.1f} images/s")


def middle(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def resident(process: int) -> float:
    """MiB of memory that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


def memory(run: Path, folder: Path, requests: int, seconds: float, tower: bool) -> None:
    """Memory while many requests are answered."""
    (folder / "body").write_bytes(body(image(32)))
    command = focoop(run) if tower else [sys.executable, __file__, "--cached", str(run)]
    with server(*command) as (address, process):
        done, began, rows = 0, time.monotonic(), []
        while done < requests and time.monotonic() - began < seconds:
            found = wrk(address, folder, 16, 10)
            assert not found["lost"] and not found["refused"]
            done += int(found["requests"])
            rows.append((done, resident(process)))
    quarters = [rows[len(rows) * part // 4] for part in range(4)] + [rows[-1]]
    shown = ", ".join(f"{held:.0f} MiB after {count}" for count, held in quarters)
    print(f"memory: {shown} requests; most {max(held for _, held in rows):.0f} MiB")
    tenth = next(held for count, held in rows if count >= done / 10)
    print(f"memory: {rows[-1][1] - tenth:+.1f} MiB after the first tenth of the requests")
    if done < requests:
        print(f"memory: stopped after {seconds:g} s, before {requests} requests")


def overload(run: Path, folder: Path, seconds: float) -> None:
    """More than a server can do: it refuses, and goes on."""
    (folder / "body").write_bytes(body(image()))
    few = ("--queue", "8", "--max-images", "1")
    with server(*focoop(run, *few)) as (address, process):
        found = wrk(address, folder, 64, seconds)
        with urllib.request.urlopen(f"{address}ready", timeout=20) as answer:
            alive = answer.status == 200
        numbers = f"{found['requests']:.0f} requests, {found['refused']:.0f} refused with 503"
        print(f"overload: {numbers}, {found['lost']:.0f} lost; {resident(process):.0f} MiB")
        assert alive and not found["lost"]


def serve_cached(run: Path) -> None:
    """A server whose image tower remembers its answer."""
    from focoop.serve import running
    from focoop.serve.loading import LoadedModel

    known: list[Any] = []
    encode = LoadedModel.encode

    def remembered(self: LoadedModel, prepared: Any) -> Any:
        from focoop.clip import ImageFeatures

        if not known:
            known.append(encode(self, prepared[:1]).pooled)
        return ImageFeatures(known[0].expand(len(prepared), -1), None)

    LoadedModel.encode = remembered  # type: ignore[method-assign]
    running.serve(
        [run], port=0, on_ready=lambda address: print(address, file=sys.stderr, flush=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a run folder; default: a small one is trained")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--memory", action="store_true", help="measure the memory too")
    parser.add_argument("--only-memory", action="store_true", help="measure nothing else")
    parser.add_argument("--tower", action="store_true", help="for the memory: no cached features")
    parser.add_argument("--requests", type=int, default=50_000, help="for the memory")
    parser.add_argument(
        "--memory-seconds", type=float, default=900.0, help="at most, for the memory"
    )
    parser.add_argument("--floor", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cached", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cached:
        return serve_cached(given.cached)
    if given.floor:
        return print(json.dumps(floor(given.floor, given.seconds)))
    if shutil.which("wrk") is None:
        raise SystemExit("this benchmark needs wrk: apt-get install wrk")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = given.model or folder / "run"
        if not given.model:
            options = [word for text in TINY for word in ("--set", text)]
            command = [sys.executable, "-m", "focoop", "run", "demo", "--untuned", *options]
            subprocess.run([*command, "--out", str(run)], check=True, stdout=subprocess.DEVNULL)
        if not given.only_memory:
            speed(run, folder, given.seconds, given.turns)
            overload(run, folder, given.seconds)
        if given.memory or given.only_memory:
            memory(run, folder, given.requests, given.memory_seconds, given.tower)
    return None


if __name__ == "__main__":
    main()

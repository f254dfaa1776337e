"""What a round costs by the number of clients, and by the number of rounds before it.

A part of `tools/soak.py`. Each number of clients runs in a process of its own, on features of two
classes, with all clients in every round and all files of a run written. Seconds are those of a
processor. Costs by rounds are read from the samples of the simulator's long run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.soak_judge import exponent, save_small

CLIENTS = (10, 30, 100, 300, 1000)
ROUNDS = 6
METHODS = ("fedncm", "promptfolio")
LARGE = 100  # clients from which a round's fixed costs are small beside its clients'
SCRIPT = """
import json, sys, time
from pathlib import Path
import focoop

def written():
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])

marks = []
focoop.run(None, sys.argv[2:], out=sys.argv[1], use_tuned=False,
           on_round=lambda *_: marks.append((time.process_time(), written())))
print(json.dumps(marks))
"""
Settings = Callable[[Path, str, int, int, float], list[str]]


def point(folder: Path, settings: list[str]) -> dict[str, float]:
    """Run once in a process of its own.

    Args:
        folder: A new folder.
        settings: Settings of the run.

    Returns:
        Processor seconds and bytes written of a round, the first and the last left out.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", SCRIPT, str(folder / "run"), *settings]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=3600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    marks = json.loads(done.stdout.splitlines()[-1])
    (first, last), steps = (marks[1], marks[-2]), len(marks) - 3
    return {
        "seconds": round((last[0] - first[0]) / steps, 4),
        "bytes": round((last[1] - first[1]) / steps),
    }


def sweep(folder: Path, settings_of: Settings, docs: Path) -> None:
    """Measure all numbers of clients; write costs.json and costs.svg.

    Args:
        folder: Where the runs go.
        settings_of: Makes the settings of a run, `tools.soak.settings_of`.
        docs: Where the results go; the long run's samples are read there.
    """
    found: dict[str, Any] = {"command": "python tools/soak.py costs --out soak"}
    for method in METHODS:
        rows = []
        for clients in CLIENTS:
            place = folder / f"{method}-{clients}"
            settings = settings_of(place, method, clients, ROUNDS, 1.0)
            settings.append("federation.evaluate_every=0")
            rows.append({"clients": clients, **point(place, settings)})
            print(method, rows[-1], flush=True)
        large = [row for row in rows if row["clients"] >= LARGE]
        places = [float(row["clients"]) for row in large]
        powers = {
            name: round(exponent(places, [row[name] for row in large]), 3)
            for name in ("seconds", "bytes")
        }
        found[method] = {"rows": rows, f"exponents_from_{LARGE}_clients": powers}
    path = docs / "soak-simulator.json"
    if path.exists():
        found["rounds"] = by_rounds(json.loads(path.read_text(encoding="utf-8"))["samples"])
    (docs / "costs.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    draw(found, docs / "costs.svg")
    print(json.dumps({key: value for key, value in found.items() if key != "rounds"}))


def by_rounds(samples: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of seconds and bytes up to rounds of the long run, with their exponents."""
    one = samples["simulator"]
    first = next(place for place, index in enumerate(samples["round"]) if index >= 1)
    zero = {"seconds": one["processor_s"][first - 1], "bytes": one["written_kb"][first - 1]}
    late = [place for place, index in enumerate(samples["round"]) if index >= 20]
    rounds = [samples["round"][place] for place in late]
    seconds = [round(one["processor_s"][place] - zero["seconds"], 1) for place in late]
    kilobytes = [one["written_kb"][place] - zero["bytes"] for place in late]
    places = [float(index) for index in rounds]
    return {
        "round": rounds,
        "seconds": seconds,
        "kilobytes": kilobytes,
        "exponents": {
            "seconds": round(exponent(places, seconds), 3),
            "bytes": round(exponent(places, [float(one) for one in kilobytes]), 3),
        },
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw costs of a round by clients, and their sums by rounds."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams |= {"svg.fonttype": "none", "font.size": 8, "svg.hashsalt": "focoop"}
    figure, places = plt.subplots(2, 2, figsize=(7.5, 5))
    for axes, name, unit in ((places[0, 0], "seconds", 1.0), (places[0, 1], "bytes", 1e6)):
        for method in METHODS:
            rows = found[method]["rows"]
            power = found[method][f"exponents_from_{LARGE}_clients"][name]
            xs, ys = [row["clients"] for row in rows], [row[name] / unit for row in rows]
            axes.loglog(xs, ys, "o-", ms=3, label=f"{method}: exponent {power:.2f}")
        axes.set_xticks(list(CLIENTS), [str(clients) for clients in CLIENTS])
        axes.minorticks_off()
        axes.set(
            xlabel="participants",
            title="MB written in a round" if unit > 1 else "seconds of a round",
        )
        axes.legend(fontsize=7)
    if "rounds" in found:
        rounds = found["rounds"]
        for axes, name, unit in ((places[1, 0], "seconds", 1.0), (places[1, 1], "kilobytes", 1e3)):
            power = rounds["exponents"]["seconds" if name == "seconds" else "bytes"]
            ys = [value / unit for value in rounds[name]]
            axes.plot(
                rounds["round"], ys, label=f"100 of 1,000 clients a round: exponent {power:.2f}"
            )
            title = "seconds up to a round" if unit == 1.0 else "MB written up to a round"
            axes.set(xlabel="round", title=title, xlim=(0, None), ylim=(0, None))
            axes.legend(fontsize=7)
    figure.tight_layout()
    save_small(figure, path)

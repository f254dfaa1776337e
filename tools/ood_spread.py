"""How far clients' OOD prompts move apart in one round, beside how far words lie apart.

    python tools/ood_spread.py runs/compare/cifar100/focoop/seed0 --lr 3

trains every client of a finished FOCoOp run for one more round from its last state and compares the
copies of each OOD prompt; nothing is written.
"""

import argparse
import sys
from itertools import combinations
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.federation.client import LocalSettings, train
from focoop.federation.rounds import client_state, start
from focoop.methods.base import Server
from focoop.runs import RunFolder
from focoop.scenario.scenario import build_scenario
from focoop.seeds import torch_generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--lr", type=float, required=True)
    given = parser.parse_args()
    folder = RunFolder.open(given.run)
    scenario, committed = build_scenario(folder.config), folder.resume_point()
    assert committed is not None, f"{given.run} has no committed round"
    federation = folder.config.federation
    settings = LocalSettings(federation.epochs, federation.batch_size, given.lr)
    initial = start(scenario.method, scenario.task, folder.config.seed)
    server, copies = Server(committed.shared), []
    for client in range(scenario.num_clients):
        state = client_state(initial, server, folder.private, client)
        generator = torch_generator(folder.config.seed, "spread", client)
        data = scenario.client(client)
        trained, _ = train(scenario.method, state, data, scenario.task, settings, generator)
        copies.append(trained.shared["ood"].flatten(1))  # (U, n d_t)
    before = committed.shared["ood"].flatten(1)
    moved = torch.stack([(copy - before).norm(dim=1).mean() for copy in copies]).mean()
    pairs = [(a - b).norm(dim=1).mean() for a, b in combinations(copies, 2)]
    print(f"norm of an OOD prompt        {before.norm(dim=1).mean():.3f}")
    print(f"moved in a round             {moved:.3f}")
    print(f"between two clients' copies  {torch.stack(pairs).mean():.3f}")
    print(f"between two words' prompts   {torch.pdist(before).mean():.3f}")


if __name__ == "__main__":
    main()

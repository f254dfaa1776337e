"""What a federation costs by the number of its clients: the formulas of docs/model/scale.md.

Bytes follow from shapes and are exact. Memory follows from what the server's code holds at once.
Seconds of the server need the constants below, measured by `benchmarks/scale.py --part server`.

`python benchmarks/scale_model.py` prints the plan for 10^3 to 10^6 clients.
"""

from dataclasses import dataclass

MEAN_SECONDS = 7e-9  # a number of an update, averaged
BY_CLASS_SECONDS = 8e-9  # the same, by class
COST_SECONDS = 6e-11  # a multiplication of transport's cost, in float64
PAIR_SECONDS = 6e-7  # a pair of a class and an OOD prompt, in all of the solver's steps
PAIR_BYTES = 24  # the same: its cost, its plan, and what a step makes of them
OBJECT_BYTES = 8192  # an update beside its tensors' numbers
AGREEMENT_SECONDS = 1.3e-4  # a secret two clients agree on, by X25519, and its keys
STREAM_SECONDS = 9.6e-9  # a number of a mask
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}


@dataclass(frozen=True)
class Sizes:
    """A method's shared tensors: C class contexts (1: one for all), U OOD contexts, each n x d."""

    classes: int
    contexts: int
    ood: int
    tokens: int
    width: int
    pool: bool = False

    @property
    def numbers(self) -> int:
        """P, numbers a client sends."""
        return (self.contexts + self.ood) * self.tokens * self.width

    def update_bytes(self, payload: str = "fp32") -> int:
        """What a client sends: codes, scales, class counts, words of the OOD slots."""
        rows = (self.contexts + self.ood) * self.tokens if payload == "int8" else 0
        return BYTES[payload] * self.numbers + 4 * rows + 8 * (self.classes + self.ood)

    def memory(self, updates: int) -> int:
        """Bytes the server takes for a step over so many updates.

        All updates, and for one tensor at a time its stack in float32 and in float64, which a mean
        by class copies once more; or the pool, its cost and its plan.
        """
        context = self.tokens * self.width
        by_class = self.contexts > 1
        stacks = [(20 if by_class else 12) * self.contexts * context, 12 * self.ood * context]
        if self.pool:
            stacks.append(4 * self.ood * context + PAIR_BYTES * self.classes * self.ood)
        return updates * (4 * self.numbers + max(stacks) + OBJECT_BYTES)

    def seconds(self, updates: int) -> float:
        """Processor seconds of that step."""
        context = self.tokens * self.width
        each = BY_CLASS_SECONDS if self.contexts > 1 else MEAN_SECONDS
        total = each * updates * self.contexts * context
        if not self.pool:
            return total + MEAN_SECONDS * updates * self.ood * context
        pairs = self.classes * self.ood * updates
        return total + pairs * (COST_SECONDS * context + PAIR_SECONDS)


def mask_seconds(clients: int, words: int) -> float:
    """Processor seconds of one client in a secure sum: shares out and in, masks for all others."""
    return clients * (3 * AGREEMENT_SECONDS + STREAM_SECONDS * words)


def unmask_seconds(clients: int, gone: int, words: int) -> float:
    """Processor seconds of the server: own masks off, and those left by clients that are gone."""
    stream = STREAM_SECONDS * words
    return (clients - gone) * (stream + gone * (AGREEMENT_SECONDS + stream))


PLAN = {
    "PromptFL": Sizes(100, 1, 0, 16, 512),
    "FOCoOp, pool mean": Sizes(100, 100, 100, 16, 512),
    "FOCoOp, pool all": Sizes(100, 100, 100, 16, 512, pool=True),
}
GIGABIT = 1.25e8  # bytes a second


def main() -> None:
    print("One in ten clients takes part in a round; ViT-B/16 (width 512), 100 classes, 100 words.")
    print("Edges: as many as the root of the clients of a round. Link: 1 Gbit/s at the server.\n")
    for name, sizes in PLAN.items():
        plain, coded = sizes.update_bytes() / 1e6, sizes.update_bytes("int8") / 1e6
        print(f"{name}: a client sends {plain:.3f} MB, {coded:.3f} MB in int8")
        print("clients    a round       GB up  link h  server GB  server s  edges  edge GB  root s")
        for power in range(3, 7):
            clients = 10**power
            count = clients // 10
            edges = round(count**0.5)
            up = count * sizes.update_bytes()
            print(
                f"10^{power}{count:>12,}{up / 1e9:>12.2f}{2 * up / GIGABIT / 3600:>8.2f}"
                f"{sizes.memory(count) / 1e9:>11.2f}{sizes.seconds(count):>10.1f}{edges:>7}"
                f"{sizes.memory(-(-count // edges)) / 1e9:>9.2f}{sizes.seconds(edges):>8.2f}"
            )
        print()


if __name__ == "__main__":
    main()

"""What a model is and whom it answers for: names, clients, thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from focoop.errors import DataError, RunError, nearest
from focoop.methods import Method, Task
from focoop.predict.calibration import GLOBAL, Calibration
from focoop.predict.deciding import Judge
from focoop.predict.facts import Client, Facts
from focoop.predict.side import Side


class DescribedModel:
    """Names of a model's classes and clients, and the tensors of each client's model.

    Args:
        facts: What the model is.
        method: The method with its settings.
        task: The task; a saved model's has no text tower.
        sides: Gives the model of a client, or of nobody (None).
        keys: The clients it can answer for, and None for the global model.
        calibration: Thresholds, or None.
        client: The client that is asked where a call names none; None: the global model.
    """

    def __init__(
        self,
        facts: Facts,
        method: Method,
        task: Task,
        sides: Callable[[int | None], Side],
        keys: Sequence[int | None],
        calibration: Calibration | None = None,
        client: Client = None,
    ) -> None:
        self.facts = facts
        self.method = method
        self.task = task
        self.calibration = calibration
        self.keys = tuple(keys)
        self._sides = sides
        self._made: dict[int | None, Side] = {}
        self._client: int | None = None
        self._client = self.key(client) if client is not None else self._usual()

    def __repr__(self) -> str:
        asked = GLOBAL if self._client is None else self.clients[self._client]
        return f"Model({self.facts.method}, {len(self.classes)} classes, client {asked!r})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names in label order."""
        return self.facts.classes

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the names of all clients of the federation, in the order of their numbers."""
        return self.facts.clients

    @property
    def sides(self) -> tuple[str, ...]:
        """Return whom the model can answer for: `global`, and names of clients."""
        return tuple(GLOBAL if key is None else self.clients[key] for key in self.keys)

    @property
    def client(self) -> int | None:
        """Return the client that is asked where a call names none; None: the global model."""
        return self._client

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the backbone."""
        return self.facts.fingerprint

    @property
    def open_share(self) -> float:
        """Return the position of the dial that the method was set up with; 1: no prior."""
        return float(self.facts.settings.get("open_share", 1.0))

    def key(self, client: Client) -> int | None:
        """Return a client's number.

        Args:
            client: Its number, its name, `global`, or None for the usual one.

        Returns:
            The number; None: the global model.

        Raises:
            RunError: The model cannot answer for it.
        """
        if client is None:
            return self._client
        names = self.clients
        found: int | None
        if client == GLOBAL and GLOBAL not in names:
            found = None
        elif isinstance(client, str) and client in names:
            found = names.index(client)
        elif isinstance(client, int) or str(client).isdecimal():
            found = int(client)
        else:
            raise RunError(f"there is no client {client!r}{nearest(str(client), self.sides)}")
        if found not in self.keys:
            shown = ", ".join(self.sides[:12]) + (", ..." if len(self.sides) > 12 else "")
            raise RunError(f"this model does not answer for {client!r}: it has {shown}")
        return found

    def side(self, client: Client = None) -> Side:
        """Return the tensors of one client's model.

        Args:
            client: Its number or name; None: the usual one.

        Returns:
            The model.
        """
        key = self.key(client)
        if key not in self._made:
            self._made[key] = self._sides(key)
        return self._made[key]

    def own_classes(self, client: Client = None) -> tuple[str, ...]:
        """Return the classes that a client has training images of.

        Args:
            client: Its number or name; None: the usual one.

        Returns:
            Class names; none for the global model.
        """
        counts = self.side(client).counts.tolist()
        return tuple(name for name, count in zip(self.classes, counts, strict=True) if count)

    def holders(self, label: str) -> tuple[str, ...]:
        """Return the clients that hold a class, where the federation says so.

        Args:
            label: The class name.

        Returns:
            Names of clients.

        Raises:
            DataError: It is no class of the model.
        """
        place = self.place(label)
        numbers = self.facts.holders[place] if self.facts.holders else ()
        return tuple(self.clients[number] for number in numbers)

    def place(self, label: str) -> int:
        """Return the number of a class.

        Args:
            label: Its name.

        Returns:
            Its place among `classes`.

        Raises:
            DataError: There is no such class.
        """
        if label not in self.classes:
            raise DataError(f"there is no class {label!r}{nearest(label, self.classes)}")
        return self.classes.index(label)

    def judge(self, client: int | None) -> Judge:
        """Return what turns evidence into answers for a client.

        Args:
            client: The client's number; None: the global model.

        Returns:
            The judge.
        """
        own = None if client is None else (self.side(client).counts > 0).cpu().numpy()
        named = [tuple(self.clients[k] for k in held) for held in self.facts.holders]
        return Judge(
            self.classes,
            own,
            named or [()] * len(self.classes),
            self.facts.ood_names,
            self.method.answer_scale(self.task),
            None if self.calibration is None else self.calibration.at(client),
        )

    def _usual(self) -> int | None:
        """The first of those it answers for: of a run the global model, if there is one."""
        return self.keys[0]

"""What a client program sees of clients that answer privately."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from .mechanisms import Named, refuse


@runtime_checkable
class Placed(Protocol):
    """Those who answer, without noise, and know who they are."""

    who: Int[Tensor, " n"]  # positions among the clients at hand

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's samples at points[j]."""

    def held(self) -> Placed:
        """The same clients with one minibatch for every question to come."""

    def whole(self) -> Placed:
        """The same clients with all of their training data for every question."""


@dataclass
class Use:
    """How often the same samples were asked about."""

    sampled: bool
    times: int = 0


class Uses:
    """What a client program asked; one that runs again, for another client, the same.

    In debug mode a program runs for client after client, each of which is asked the
    same questions.
    """

    def __init__(self) -> None:
        self.found: list[Use] = []

    def begin(self) -> None:
        """A program begins."""
        self.found = []

    def add(self, sampled: bool, times: int = 0) -> Use:
        """It asks about other samples than before."""
        self.found.append(Use(sampled, times))
        return self.found[-1]


class PrivateClients:
    """What a client program sees of private clients; see `coterie.types.Clients`."""

    def __init__(
        self,
        clients: Placed,
        named: Named,
        call: tuple[str, int],
        said: str,
        used: Uses | None = None,
        numbers: Iterator[int] | None = None,
        use: Use | None = None,
    ) -> None:
        """Wraps clients whose kernel clips.

        Args:
            clients: as they answer without noise.
            named: which noise.
            call: verb and number of the question to the oracle.
            said: who asks, as an error says it.
            used: where questions are noted; None: in the ledger at once.
            numbers: of the questions, counted over all of a program's clients.
            use: of the samples that every question is about; None: fresh ones.
        """
        self._clients, self._named, self._call = clients, named, call
        self._said, self._used, self._use = said, used, use
        self._numbers = count() if numbers is None else numbers

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the private gradient of client j's samples at points[j]."""
        g = self._clients.grad(points)
        sampled = self._note()
        mechanism, who = self._named.mechanism, self._clients.who
        keys = self._named.keys(*self._call, next(self._numbers))
        samples = mechanism.expected if sampled else mechanism.sizes
        return mechanism.noised(g, keys, who, samples)

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Refused."""
        refuse(self._said, "losses")

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Refused."""
        refuse(self._said, "losses of single samples")

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Refused."""
        refuse(self._said, "Hessian-vector products")

    def held(self) -> PrivateClients:
        """The same clients with one minibatch for every question to come."""
        if self._use is not None:
            return self._with(self._clients.held(), self._use)
        return self._with(self._clients.held(), self._noted(sampled=True))

    def whole(self) -> PrivateClients:
        """The same clients with all of their training data for every question."""
        return self._with(self._clients.whole(), self._noted(sampled=False))

    def validation(self) -> PrivateClients:
        """Refused."""
        refuse(self._said, "validation data")

    def _note(self) -> bool:
        """Notes a question, and says whether it is about a minibatch."""
        if self._use is None:
            self._noted(sampled=True, times=1)
            return True
        self._use.times += 1
        return self._use.sampled

    def _noted(self, *, sampled: bool, times: int = 0) -> Use:
        if self._used is not None:
            return self._used.add(sampled, times)
        if not times:
            refuse(self._said, "one minibatch for several questions in time")
        who = (self._clients.who + self._named.mechanism.first).cpu()
        self._named.enter(self._call[0], who, times=times, sampled=sampled)
        return Use(sampled, times)

    def _with(self, clients: Placed, use: Use) -> PrivateClients:
        return PrivateClients(
            clients,
            self._named,
            self._call,
            self._said,
            self._used,
            self._numbers,
            use,
        )

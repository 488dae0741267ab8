"""Server optimisers: the server takes its own step in the direction of an average.

With d = average - x, where x is the model that clients have, the server makes

    momentum:  m <- b m + d,              x <- x + lr m                       (FedAvgM)
    adam:      m <- b m + (1 - b) d,      s <- s - (1 - c) (s - d^2),
               x <- x + lr m / (sqrt(s) + tau)                                (FedAdam)
    yogi:      s <- s - (1 - c) d^2 sign(s - d^2), and the rest as in adam    (FedYogi)

entry by entry, where b is `momentum` and c is `beta2`. m begins at 0 and s at tau^2.
With b = 0 and lr = 1, the optimiser `momentum` gives the average itself.

`with_server` wraps a method whose rounds have one average of models, such as FedAvg or
Ditto. Only the server has m and s. So if a client was absent, it gets the same model as
all other clients. Running statistics of batch normalisation are averaged.

References:
    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for
    federated visual classification", 2019, arXiv 1909.06335 (FedAvgM).
    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive federated
    optimization", ICLR 2021, arXiv 2003.00295 (FedAdam, FedYogi).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import InputError
from ..clients.traffic import Wrapping
from ..options import BelowOne, Positive
from ..types import Algorithm, Info, Message, Numbers, Oracle, State


class Server(NamedTuple):
    """A server optimiser and its numbers."""

    name: str
    lr: float
    momentum: float
    beta2: float = 0.0
    tau: float = 0.0


def momentum(*, lr: Positive = 1.0, momentum: BelowOne = 0.9) -> Server:
    """The server adds up what averages change (FedAvgM)."""
    return Server("momentum", lr, momentum)


def adam(
    *,
    lr: Positive = 0.01,
    momentum: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    tau: Positive = 1e-3,
) -> Server:
    """The server takes steps of Adam, without bias correction (FedAdam)."""
    return Server("adam", lr, momentum, beta2, tau)


def yogi(
    *,
    lr: Positive = 0.01,
    momentum: BelowOne = 0.9,
    beta2: BelowOne = 0.99,
    tau: Positive = 1e-3,
) -> Server:
    """The server takes steps as in `adam`, but s decreases more slowly (FedYogi)."""
    return Server("yogi", lr, momentum, beta2, tau)


SERVERS = {"adam": adam, "momentum": momentum, "yogi": yogi}
"""The server optimisers by name."""


class Memory(NamedTuple):
    """The server's m and s, for the S columns that are averaged."""

    x: Tensor  # (S,) the model that clients have
    m: Tensor  # (S,)
    s: Tensor  # (S,), or (0,) for momentum


class ServerState(NamedTuple):
    """The state of a method, and the memory of its server."""

    state: State
    memory: Memory


def with_server(algorithm: Algorithm, server: Server, label: str) -> Algorithm:
    """The method, with a server that takes its own step from each round's average.

    Args:
        algorithm: a method with one average of models in a round, weighted and over all
            clients.
        server: the optimiser.
        label: the name of the method in errors.
    """
    releases = algorithm.releases
    if "rounds" not in algorithm.faces or (releases and not releases.average):
        raise InputError(
            f"`optimizer.server` is for rounds that average models, and {label} has "
            "none: leave it out."
        )

    def init(x: Tensor, oracle: Oracle) -> ServerState:
        hearing = _Server(oracle, algorithm.home, label)
        state = algorithm.init(x, hearing)
        begin = x[0] if hearing.heard is None else hearing.heard
        begin = begin[..., hearing.averaged_columns(x.shape[1])].clone()
        zero = torch.zeros_like(begin)
        # Momentum needs no squares.
        s = zero[:0] if server.name == "momentum" else zero + server.tau**2
        return ServerState(state, Memory(begin, zero, s))

    def step(
        state: ServerState, oracle: Oracle, rng: torch.Generator
    ) -> tuple[ServerState, Info]:
        steps = _Server(oracle, algorithm.home, label, server, state.memory)
        inner, info = algorithm.step(state.state, steps, rng)
        if steps.after is None:
            raise steps.refusal("none")
        return ServerState(inner, steps.after), info

    def personal(state: ServerState, oracle: Oracle) -> Tensor:
        return algorithm.personal(state.state, oracle)

    welcome = algorithm.welcome
    return algorithm._replace(
        init=init,
        step=step,
        personal=personal,
        welcome=welcome and (lambda state, oracle: welcome(state.state, oracle)),
        info=lambda state: algorithm.info(state.state),
    )


def server_step(server: Server, memory: Memory, average: Float[Tensor, " s"]) -> Memory:
    """The new model and the new memory of the server, after one average."""
    (x, m, s), d = memory, average - memory.x
    if server.name == "momentum":
        m = server.momentum * m + d
        return Memory(x + server.lr * m, m, s)
    m = server.momentum * m + (1 - server.momentum) * d
    apart = s - d.square()
    change = apart if server.name == "adam" else d.square() * apart.sign()
    s = s - (1 - server.beta2) * change
    return Memory(x + server.lr * m / (s.sqrt() + server.tau), m, s)


class _Server(Wrapping[Oracle]):
    """An oracle whose average of models is the model after the server's step."""

    def __init__(
        self,
        oracle: Oracle,
        kept: Bool[Tensor, " d"] | None,
        label: str,
        server: Server | None = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(oracle)
        self._kept, self._label = kept, label
        self._server, self._memory = server, memory
        self.heard: Tensor | None = None  # (D,) the last average at the beginning
        self.after: Memory | None = None
        self.blended, self.compare = oracle.blended, oracle.compare

    def averaged_columns(self, columns: int) -> Bool[Tensor, " d"]:
        """Which columns of a message of this width the server averages."""
        device = self.active.device
        mask = torch.ones(columns, dtype=torch.bool, device=device)
        for home in (self._kept, self.home):
            if home is not None and len(home) == columns:
                mask &= ~home.to(device)
        found = self.statistics  # which are plain averages
        if found is not None and found.parameters == columns:
            mask[found.columns] = False
        return mask

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """The average of numbers; for models, the model after the server's step."""
        found = self._oracle.average(shares, rows, groups, count=count)
        if isinstance(rows, Numbers):
            return found
        if self._memory is None or self._server is None:
            self.heard = found[0] if found.dim() == 2 else None
            return found
        if self.after is not None or groups is not None or found.dim() != 2:
            raise self.refusal("several")
        mask = self.averaged_columns(found.shape[1])
        if int(mask.sum()) != len(self._memory.x):
            raise self.refusal("other rows")
        self.after = server_step(self._server, self._memory, found[0, mask])
        if bool(mask.all()):
            return self.after.x.expand_as(found)
        whole = found.clone()
        whole[:, mask] = self.after.x
        return whole

    def refusal(self, what: str) -> InputError:
        """The error for a method without exactly one average of models in a round."""
        return InputError(
            "`optimizer.server` needs rounds with one average of all clients' models, "
            f"but {self._label} averages {what}: leave it out."
        )

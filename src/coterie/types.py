"""The few types on which everything else agrees: algorithm, oracle, client program.

A federation is a matrix: row i of `x`, shape (N, D), is client i's model. An algorithm
is a pair of pure functions on that matrix and meets the clients only through an oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

State = Any
"""What an algorithm remembers between rounds: a NamedTuple of tensors and numbers."""

Info = dict[str, Tensor | float]
"""What a round tells about itself.

`floats` is the number of values sent between clients (and server) in this round,
`weights` an (N, N) collaboration matrix; every other entry is recorded as it is.
"""


class Comparison(NamedTuple):
    """How far client k's gradient is from client i's own, both at client i's model.

    Every client divides its estimation data into two random halves, with gradients
    a_k, b_k at x_i, and p_k of both halves together. The two halves are independent, so
    the inner products of `cross` and `own` are unbiased, while the squared norms of
    `pooled` and `own_pooled` are too large by the noise of the gradients p.
    """

    cross: Float[Tensor, "n n"]  # <a_i - a_k, b_i - b_k>
    own: Float[Tensor, " n"]  # <a_i, b_i>
    pooled: Float[Tensor, "n n"]  # |p_i - p_k|^2
    own_pooled: Float[Tensor, " n"]  # |p_i|^2
    noise: Float[Tensor, "n n"]  # <a_i - b_i, a_k - b_k>, of mean zero for k != i
    variance: Float[Tensor, " n"]  # an estimate of that of one sample's gradient
    samples: Float[Tensor, " n"]  # how many samples client k used
    known: Bool[Tensor, "n n"]  # pairs that took part


@runtime_checkable
class Clients(Protocol):
    """What a client program may ask: n clients at once in simulation, one at a site.

    Every question uses a fresh minibatch of each client, except those asked through
    `held` or `whole`.
    """

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's minibatch loss at points[j]."""

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is client j's minibatch loss at points[j]."""

    def hvp(
        self, points: Float[Tensor, "n d"], vectors: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """Row j is the Hessian of client j's loss at points[j], times vectors[j]."""

    def held(self) -> Clients:
        """The same clients with one minibatch, fresh now, for every question to come.

        For what compares answers: finite differences, or minimising one sampled loss.
        """

    def whole(self) -> Clients:
        """The same clients with all of their training data for every question."""


Program = Callable[..., Tensor | tuple[Tensor, ...]]
"""Row-wise code `program(clients, *rows, **options)` that every client runs alone."""


@runtime_checkable
class Oracle(Protocol):
    """All that an algorithm may ask of the clients in one round.

    Inactive clients answer nothing: their rows of gradients are zero, and `each` leaves
    their rows as they were.
    """

    @property
    def active(self) -> Bool[Tensor, " n"]:
        """Who takes part in this round."""

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i)."""

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "n n"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i)."""

    def compare(
        self, x: Float[Tensor, "n d"], *, samples: int | None = None
    ) -> Comparison:
        """Distances and products of g_k(x_i) and g_i(x_i), never (N, N, D) in memory.

        Args:
            x: the models.
            samples: how many training samples each client uses; None uses them all.
        """

    def each(
        self, program: Program, *rows: Tensor, **options: float | int | str | bool
    ) -> tuple[Tensor, ...]:
        """Runs `program(clients, *rows, **options)`, whose results replace the rows.

        The program returns new values for its first rows, in order; rows beyond those
        are only read. It must be a module-level function, so that a site can run the
        very same one.
        """


class Algorithm(NamedTuple):
    """A method: how to begin, what one round does, and which models clients use.

    `personal` may ask the clients for a last local step before use (fine-tuning); the
    default returns the field `x` of the state.

    `welcome(state, oracle)` gives models (M, D) to M clients that were not there in
    training, whom the oracle asks. The algorithm is then built for all N + M clients,
    the newcomers last, while the state is that of the N who trained. Without it a
    newcomer gets the personal model that fits its training data best.
    """

    init: Callable[[Tensor], State]
    step: Callable[[State, Oracle, torch.Generator], tuple[State, Info]]
    personal: Callable[[State, Oracle], Tensor] = lambda state, oracle: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None


@runtime_checkable
class Federated(Protocol):
    """Clients that can be asked, in a simulation or elsewhere, round by round."""

    def __len__(self) -> int:
        """How many clients there are."""

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> CountingOracle:
        """The oracle of round t; its answers depend on nothing asked before."""


@runtime_checkable
class CountingOracle(Oracle, Protocol):
    """An oracle that counts what its answers cost."""

    @property
    def gradients(self) -> Float[Tensor, " n"]:
        """Gradients of single samples that each client has evaluated in this round."""

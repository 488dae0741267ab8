"""Bounds and step sizes of Karula.

The objective is f(x) = (1/n) sum_i a_i f_i(x_i), subject to |x_i - x_j|^2 <= t D_ij for
all pairs. Every a_i f_i is L-smooth, and s of the n clients take part in a round. A
point is stationary if the gradient mapping

    G_eta(x) = (x - Proj(x - eta grad f(x))) / eta

is 0 there. Theorem 4.4 bounds the smallest expected squared norm of this mapping in K
rounds.

Reference:
    Erickson, Johansson, "Personalized federated learning under model dissimilarity
    constraints", 2025, arXiv 2505.07575.

Differences (each with a test; see docs/errata.md): The theorem's constant is 64 L / 3,
    as in its proof, not 8 L / 3. The noise in its bound is multiplied by eta. A
    geometric series in the proof is larger than printed. So s must be at least of the
    order of sqrt(n). s = n is allowed.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, integer, number
from coterie.optim.projections import project


def optima_bound(distance: float, *, lipschitz: float, growth: float) -> float:
    """A bound on the squared distance of two best models (Proposition 3.4).

    `|x_i^* - x_j^*|^2 <= (2 L_X / gamma) W_1(i, j)`.

    Args:
        distance: W_1, the 1-Wasserstein distance of the data of two clients.
        lipschitz: L_X, the Lipschitz constant of a sample's loss as a function of the
            sample.
        growth: gamma, with f_i(x) - f_i(x_i^*) >= gamma / 2 |x - x_i^*|^2.

    >>> optima_bound(0.5, lipschitz=3.0, growth=1.0)
    3.0
    """
    number("distance", distance, at_least=0)
    number("lipschitz", lipschitz, at_least=0)
    number("growth", growth, above=0)
    return 2 * lipschitz / growth * distance


def paper_step(smoothness: float) -> float:
    """The step size `eta = 3 / (8 L)` of Theorems 4.4 and 4.5.

    The option `lr` of the algorithm is eta / n.

    >>> paper_step(1.5)
    0.25
    """
    return 3 / (8 * number("smoothness", smoothness, above=0))


def gradient_mapping(
    x: Float[Tensor, "n d"],
    gradient: Float[Tensor, "n d"],
    squared_radius: Float[Tensor, "n n"],
    eta: float,
) -> Float[Tensor, "n d"]:
    """`(x - Proj(x - eta gradient)) / eta`, which is 0 only at stationary points."""
    return (x - project(x - eta * gradient, squared_radius, tolerance=1e-12).x) / eta


def fewest_active(clients: int) -> int:
    """The smallest s for which the proof of Theorem 4.4 holds: `10 s^4 >= 9 n^2`.

    With eta = 3 / (8 L), the proof needs `L / 2 - 1 / (2 eta) + 2 eta L^2 n^2 / s^4` to
    be at most 0. With a smaller s, stored gradients become too old.

    >>> [fewest_active(n) for n in (2, 6, 30, 1000)]
    [2, 3, 6, 31]
    """
    integer("clients", clients, at_least=1)
    s = 1
    while 10 * s**4 < 9 * clients**2:
        s += 1
    return s


def gradient_mapping_bound(
    start: float,
    rounds: int,
    *,
    smoothness: float,
    clients: int,
    active: int,
    variance: float = 0.0,
    inexactness: float = 0.0,
) -> float:
    """A bound on `min_k E |G_eta(x^k)|^2` over k < K rounds (Theorem 4.4, corrected).

    `(64 L / 3) ((f(x^0) - f^*) / K + 4 eta sigma^2 (s + 1) / s + 2 delta)` with eta = 3
    / (8 L), from a feasible start, with stored gradients of all clients.

    Args:
        start: f(x^0) - f^*.
        rounds: K.
        smoothness: L, of every a_i f_i.
        clients: n.
        active: s, at least `fewest_active`.
        variance: sigma^2, of a client's gradient of a_i f_i.
        inexactness: delta, the gap of the projections divided by eta.
    """
    number("start", start, at_least=0)
    integer("rounds", rounds, at_least=1)
    number("variance", variance, at_least=0)
    number("inexactness", inexactness, at_least=0)
    eta = paper_step(smoothness)
    integer("active", active, at_least=1, at_most=clients)
    if active < fewest_active(clients):
        raise InputError(
            f"`active` must be at least {fewest_active(clients)} of {clients} clients "
            f"for the theorem, got {active}."
        )
    noise = 4 * eta * variance * (active + 1) / active
    return 64 * smoothness / 3 * (start / rounds + noise + 2 * inexactness)

"""Gossip in rounds: each node takes a mean of its row and its neighbours' rows.

    x^{t+1} = W x^t                                        `plain`, W_t: `time_varying`
    x^1 = W x^0,  x^{t+1} = omega W x^t + (1 - omega) x^{t-1}               `chebyshev`
    omega = 2 (1 - sqrt(l (1 - l/4))) / (1 - l/2)^2

W is doubly stochastic and sparse; the cost of a round grows with the number of edges.
For a symmetric W, l is its absolute gap, `1 - max(|lambda_2|, |lambda_n|)`. After t
rounds, `|x^t - x_bar|^2` is at most `(1 - l)^{2t}` times its value at the start with
`plain`, and `2 exp(-t sqrt(l))` times with `chebyshev`. `chebyshev` needs one W for all
rounds.

`mix` may be the method `mix` of an oracle instead of a product of matrices. Then each
process holds its own rows, and messages are counted.

References:
    Even, PhD thesis, 2024, 1.2.2 and 6.2.1, tel-04877971.

Differences: the recursion begins with W. The printed recursion begins with omega W,
which would change the mean; see docs/errata.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxtyping import Float
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.spectra import chebyshev_factor, contraction

Mix = Callable[[Tensor, Tensor], Tensor]
"""Maps weights (N, N) and rows to the weighted means."""


def product(matrix: Tensor, x: Tensor) -> Tensor:
    """W x, in the precision of x."""
    return matrix.to(x) @ x


def plain(
    x: Float[Tensor, "n d"],
    matrix: Float[Tensor, "m m"],
    *,
    rounds: int,
    mix: Mix = product,
) -> Float[Tensor, "n d"]:
    """The rows after t rounds: W^t x.

    Args:
        x: the first rows: all rows, or the rows of this process if `mix` is an
            oracle's.
        matrix: doubly stochastic, sparse or dense.
        rounds: t.
        mix: computes the product of weights and rows.
    """
    checks.integer("rounds", rounds, at_least=0)
    return time_varying(x, (matrix for _ in range(rounds)), mix=mix)


def time_varying(
    x: Float[Tensor, "n d"], matrices: Iterable[Tensor], *, mix: Mix = product
) -> Float[Tensor, "n d"]:
    """`... W_2 W_1 W_0 x`, one round for each matrix; arguments as for `plain`."""
    x, checked = _rows(x), None
    for t, matrix in enumerate(matrices):
        if matrix is not checked:
            checks.doubly_stochastic(f"matrix {t}", matrix, len(matrix))
            checked = matrix
        x = mix(matrix, x)
    return x


def chebyshev(
    x: Float[Tensor, "n d"],
    matrix: Float[Tensor, "m m"],
    *,
    rounds: int,
    gap: float | None = None,
    mix: Mix = product,
) -> Float[Tensor, "n d"]:
    """The rows after t rounds of Chebyshev gossip: P_t(W) x with a polynomial P_t.

    Args:
        x: the first rows.
        matrix: symmetric and doubly stochastic.
        rounds: t.
        gap: l; by default, it is computed from the matrix. A smaller number is allowed,
            but slower.
        mix: computes the product of weights and rows.
    """
    checks.integer("rounds", rounds, at_least=0)
    checks.doubly_stochastic("matrix", matrix, len(matrix))
    _refuse_asymmetry(matrix)
    omega = chebyshev_factor(1 - contraction([matrix]) if gap is None else gap)
    x = _rows(x)
    if not rounds:
        return x.clone()
    before, now = x, mix(matrix, x)
    for _ in range(rounds - 1):
        before, now = now, omega * mix(matrix, now) + (1 - omega) * before
    return now


def _rows(x: Tensor) -> Tensor:
    if not x.shape[1]:
        raise InputError("`x` must have at least one column, got none.")
    return checks.finite("x", x)


def _refuse_asymmetry(matrix: Tensor) -> None:
    entries = (matrix.to_sparse() - matrix.T.to_sparse()).coalesce()
    wrong = entries.values().abs() > 1e-6  # rounding in single precision
    if wrong.any():
        i, k = entries.indices()[:, wrong][:, 0].tolist()
        raise InputError(
            f"`matrix` must be symmetric, but its entries ({i}, {k}) and ({k}, {i}) "
            "differ."
        )

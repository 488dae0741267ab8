"""How many clients with one sample each are needed to determine a common subspace.

References:
    Even, PhD thesis, 2024, chapter 9, section 9.4, tel-04877971.

Differences (see docs/errata.md): samples are noiseless; the thesis says noisy.
"""

from __future__ import annotations

import math

from scipy.stats import f

from coterie.checks import InputError, integer, number


def clients_needed(
    dimension: int, rank: int, eps: float, *, spread: float = 1.0
) -> float:
    """`D ln D e^(r/(lam eps))`: the order of clients for dist_F^2/r <= eps; Thm 9.3.

    Args:
        dimension: D.
        rank: r.
        eps: the error of the subspace.
        spread: lam, with `(1/N) sum_i w_i w_i' >= (lam B^2/r) U U'`; 1: models are
            spread evenly.
    """
    d, r = integer("dimension", dimension, at_least=2), _rank(rank)
    number("eps", eps, above=0)
    number("spread", spread, above=0, at_most=1)
    try:
        return d * math.log(d) * math.exp(r / (spread * eps))
    except OverflowError:
        return math.inf


def wrong_is_admissible(rank: int, clients: int) -> float:
    """The probability `P(chi^2_r >= chi^2_1)^N` that an orthogonal subspace fits.

    Project a sample onto the wrong subspace, and onto one direction of the true
    subspace. The wrong subspace fits if the first projection is at least as long as the
    second.

    >>> [round(wrong_is_admissible(r, 1), 3) for r in (1, 2, 3, 5)]
    [0.5, 0.707, 0.818, 0.924]
    """
    return _one(_rank(rank)) ** integer("clients", clients, at_least=0)


def clients_that_mislead(rank: int, chance: float = 7 / 8) -> int:
    """The largest N for which a wrong subspace fits with this probability; Prop. 9.4.2.

    The number grows exponentially in the rank.

    >>> [clients_that_mislead(r) for r in (10, 15, 20)]
    [13, 88, 571]
    """
    if not 0 < chance < 1:
        raise InputError(f"`chance` must be between 0 and 1, got {chance:g}.")
    return math.floor(math.log(chance) / math.log(_one(_rank(rank))))


def _one(rank: int) -> float:
    """`P(chi^2_1 <= chi^2_r)`, because chi^2_1 / (chi^2_r / r) is F-distributed."""
    return float(f.cdf(rank, 1, rank))


def _rank(rank: int) -> int:
    return integer("rank", rank, at_least=1)

"""What a choice between models on held-out data can cost, at most.

A client compares a shared model with its own on n held-out samples. The paired
differences of their losses have mean delta, the truth, and standard deviation s; so the
mean difference has standard error e = s / sqrt(n), and is nearly normal. It uses its
own model only where that is better by `caution` standard errors. Where its own is the
better one, delta > 0, the expected loss above that of training alone is

    delta P(it uses the shared one) = delta Phi(caution - delta / e),

at most e max_z z Phi(caution - z), whatever delta is: never worse than training alone
by more than about a standard error. Where the shared one is the better one, leaving it
by chance costs at most e max_z z Phi(-caution - z). With N clients that are alike, e is
that of all their samples together.
"""

from __future__ import annotations

from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from ..checks import number


def most_above_own(deviation: float, samples: float, *, caution: float = 1.0) -> float:
    """The expected loss above that of training alone, at most.

    >>> round(most_above_own(1.0, 100, caution=0.0), 4)  # 0.17 standard errors
    0.017

    Args:
        deviation: s, of the differences of losses on single samples.
        samples: n, that are held out.
        caution: standard errors by which one's own model must be better to be used.
    """
    return _most(deviation, samples, caution)


def most_above_shared(
    deviation: float, samples: float, *, caution: float = 1.0
) -> float:
    """The expected loss above that of the shared model, at most; as above."""
    return _most(deviation, samples, -caution)


def _most(deviation: float, samples: float, shift: float) -> float:
    number("deviation", deviation, at_least=0)
    number("samples", samples, above=0)
    found = minimize_scalar(
        lambda z: -z * ndtr(shift - z), bounds=(0, 10 + abs(shift)), method="bounded"
    )
    return float(-found.fun) * deviation / samples**0.5

"""Lower bounds on the epsilon of a mechanism, from right and wrong guesses.

An attacker guesses who was in the data. If a mechanism is (epsilon, delta)-private, the
laws below limit how well any attacker can guess. If an attacker guesses better, the
true epsilon is larger, with the given confidence. A bound above the accountant's
epsilon proves that the mechanism breaks its promise. A bound below that epsilon proves
nothing.

Many runs, with a sample in or out (Kairouz, Oh, Viswanath 2015): the attacker calls the
sample in or out. The rate of right calls "in" is at most delta + e^epsilon times the
rate of wrong calls "in". Calls "out" obey the same law. We limit the rates as Clopper
and Pearson do.

One run, with m canaries that are each in with chance 1/2 (Steinke et al. 2023, Theorem
5.2): at least v of r guesses are right with chance at most

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,

where B is binomial with r trials of chance 1/(1 + e^-epsilon).

A mechanism that claims to be mu-Gaussian private (Nasr et al. 2023): telling apart
canaries that are in and out is at least as hard as telling apart N(0, 1) and N(mu, 1).
So mu is at least Phi^-1(rate of right calls) - Phi^-1(rate of wrong calls). With this
claim, the rates prove a far larger bound.

References:
    Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini, Thakurta, Terzis, "Tight
    auditing of differentially private machine learning", USENIX Security 2023, arXiv
    2302.07956.
    Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML
    2015, arXiv 1311.0776.
    Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS
    2023, arXiv 2305.08846.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import beta, binom, norm

from ...checks import InputError, integer, number

_LARGEST = 50.0
"""The largest epsilon that we prove: error rates beyond it would be below e^-50."""


def epsilon_of_rates(
    found: int,
    members: int,
    wrong: int,
    others: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """The smallest epsilon for which guesses in independent runs are plausible.

    >>> round(epsilon_of_rates(1000, 1000, 0, 1000), 2), epsilon_of_rates(5, 9, 4, 9)
    (5.6, 0.0)

    Args:
        found: runs with the sample that the attacker called "in".
        members: runs with the sample.
        wrong: runs without the sample that the attacker called "in".
        others: runs without the sample.
        delta: the delta of the promise.
        confidence: that the bound holds.
    """
    _refuse(delta, confidence)
    least_found, most_wrong = _rates(found, members, wrong, others, confidence)
    ways = ((least_found, most_wrong), (1 - most_wrong, 1 - least_found))
    ratios = [(right - delta) / error for right, error in ways]
    return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)])


def mu_of_rates(
    found: int, members: int, wrong: int, others: int, *, confidence: float = 0.95
) -> float:
    """The smallest mu for which guesses in independent runs are plausible.

    >>> round(mu_of_rates(1000, 1000, 0, 1000), 2), mu_of_rates(5, 9, 4, 9)
    (5.36, 0.0)

    The arguments are those of `epsilon_of_rates`.
    """
    _refuse(0.0, confidence)
    right, error = _rates(found, members, wrong, others, confidence)
    if right <= 0 or error >= 1:
        return 0.0
    return max(0.0, float(norm.ppf(right) - norm.ppf(error)))


def _rates(
    found: int, members: int, wrong: int, others: int, confidence: float
) -> tuple[float, float]:
    """Confidence bounds: the lowest rate of right calls, the highest of wrong calls."""
    _refuse_count("found", found, members)
    _refuse_count("wrong", wrong, others)
    tail = (1 - confidence) / 2
    most_wrong = (
        1.0 if wrong == others else float(beta.ppf(1 - tail, wrong + 1, others - wrong))
    )
    least_found = (
        0.0 if not found else float(beta.ppf(tail, found, members - found + 1))
    )
    return least_found, most_wrong


def epsilon_of_one_run(
    right: int,
    guesses: int,
    canaries: int,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """The smallest epsilon for which these right guesses in one run are plausible.

    >>> round(epsilon_of_one_run(100, 100, 100), 2), epsilon_of_one_run(55, 100, 100)
    (3.49, 0.0)

    Args:
        right: guesses that were right.
        guesses: all guesses; the attacker may abstain.
        canaries: samples that were each in with chance 1/2.
        delta: the delta of the promise.
        confidence: that the bound holds.
    """
    _refuse_count("guesses", guesses, canaries)
    _refuse_count("right", right, guesses)
    _refuse(delta, confidence)

    def plausible(epsilon: float) -> bool:
        return _chance(right, guesses, canaries, epsilon, delta) >= 1 - confidence

    return _least(plausible)


def _chance(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """An upper bound on the chance of at least v right guesses."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    plain = float(binom.sf(v - 1, r, accuracy))
    if not delta or not v:
        return plain
    # P[v > B >= v - i] for i = 1 .. v, each a sum with one more term.
    below = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, accuracy))
    worst = float((below / np.arange(1, v + 1)).max())
    return min(1.0, plain + 2 * m * delta * worst)


def _least(plausible: Callable[[float], bool]) -> float:
    low, high = 0.0, _LARGEST
    if plausible(low):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if plausible(middle) else (middle, high)
    return low


def _refuse_count(name: str, value: int, of: int) -> None:
    integer(name, value, at_least=0)
    if value > of:
        raise InputError(f"`{name}` must be at most {of}, got {value}.")


def _refuse(delta: float, confidence: float) -> None:
    number("delta", delta, at_least=0, below=1)
    number("confidence", confidence, above=0, below=1)

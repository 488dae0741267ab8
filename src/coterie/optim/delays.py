"""Weights of late answers, and of answers from clients that answer rarely."""

from __future__ import annotations

from typing import Annotated, Literal

from ..checks import number

Late = Literal["constant", "adaptive", "heterogeneous"]


def _balance(name: str, most: float) -> float:
    """Returns `most` if it is a valid limit on factors: 0, or at least 1."""
    return number(name, most, at_least=1 if most else 0)


Balance = Annotated[float, _balance]


def factor(late: str, workers: int, tau: int) -> float:
    """The factor of a late answer: 1, `min(1, M / tau)` or `min(1, M / (2 tau))`.

    The three forms are `constant`, `adaptive` and `heterogeneous`. tau is the delay of
    an answer, counted in answers, and M the number of workers. The mean of tau is at
    most M, even if some workers are very slow. So only few answers get a much smaller
    weight. The second form is from Theorem 3.2.1 of Even's thesis. The third is from
    Theorem 3.2.3, and from Theorem 3.3 for clients with different data.

    >>> factor("adaptive", 10, 5), factor("adaptive", 10, 40)
    (1.0, 0.25)
    >>> factor("heterogeneous", 10, 5), factor("heterogeneous", 10, 10)
    (1.0, 0.5)
    """
    if late == "constant":
        return 1.0
    return min(1.0, workers / tau / (2 if late == "heterogeneous" else 1))


def balance(most: float, answers: list[int], client: int) -> float:
    """The factor `p_bar / p_i`, at most `most`, for equal influence of all clients.

    p_i is the client's share of all answers so far, and p_bar the mean of these shares.
    If a client answers very rarely, the limit `most` keeps its steps short, so it still
    has less influence. If `most` is 0, all factors are 1.

    >>> balance(10, [6, 2], 0), balance(10, [6, 2], 1), balance(10, [99, 1], 1)
    (0.6666666666666666, 2.0, 10)
    """
    if not most:
        return 1.0
    return min(most, sum(answers) / len(answers) / answers[client])

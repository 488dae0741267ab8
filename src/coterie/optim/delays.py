"""How much an answer counts that is late, or of one who answers rarely."""

from __future__ import annotations

from typing import Annotated, Literal

from ..checks import number

Late = Literal["constant", "adaptive", "heterogeneous"]


def _balance(name: str, most: float) -> float:
    """The largest factor of balanced steps, if it can be one: 0, or from 1 on."""
    return number(name, most, at_least=1 if most else 0)


Balance = Annotated[float, _balance]


def factor(late: str, workers: int, tau: int) -> float:
    """1; `min(1, M / tau)` if `adaptive`; `min(1, M / (2 tau))` if `heterogeneous`.

    The mean of tau is at most M, the number of workers, whatever the slowest does, so
    that few answers count much less. Steps of Theorem 3.2.1 have the second form, those
    of 3.2.3 and, for clients whose data differ, of 3.3 the third.

    >>> factor("adaptive", 10, 5), factor("adaptive", 10, 40)
    (1.0, 0.25)
    >>> factor("heterogeneous", 10, 5), factor("heterogeneous", 10, 10)
    (1.0, 0.5)
    """
    if late == "constant":
        return 1.0
    return min(1.0, workers / tau / (2 if late == "heterogeneous" else 1))


def balance(most: float, answers: list[int], client: int) -> float:
    """`p_bar / p_i`, by which all clients count alike, whoever answers how often.

    Shares p_i of all answers are those until now. A client that answers more than
    `most` times as rarely as the average still counts less: its steps would be too
    long. With 0 all factors are 1.

    >>> balance(10, [6, 2], 0), balance(10, [6, 2], 1), balance(10, [99, 1], 1)
    (0.6666666666666666, 2.0, 10)
    """
    if not most:
        return 1.0
    return min(most, sum(answers) / len(answers) / answers[client])

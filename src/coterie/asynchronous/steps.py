"""How much an answer counts that is late, or of one who answers rarely."""

from __future__ import annotations

from ..checks import one_of

RULES = ("constant", "adaptive")


def checked(rule: str) -> str:
    """The rule, if there is one of that name."""
    return one_of("rule", rule, RULES)


def factor(rule: str, workers: int, tau: int) -> float:
    """1, or `min(1, M / tau)` for the rule `adaptive` and M workers.

    The mean of tau is at most M, whatever the slowest does, so that few answers count
    less. The rules of Theorems 3.2 and 3.3 have this form.

    >>> factor("adaptive", 10, 5), factor("adaptive", 10, 40)
    (1.0, 0.25)
    """
    return min(1.0, workers / tau) if rule == "adaptive" else 1.0


def balance(answers: list[int], client: int) -> float:
    """The factor by which clients count alike, whoever answers how often: p_bar / p_i.

    Shares p_i of all answers are those until now.

    >>> balance([6, 2], 0), balance([6, 2], 1)
    (0.6666666666666666, 2.0)
    """
    return sum(answers) / len(answers) / answers[client]

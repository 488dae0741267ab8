"""Bounds and step sizes of adaptive All-for-one.

Client i follows `x_i <- x_i - eta_i^t sum_k alpha_ik g_k(x_i)` with the weights of
Definition 1 (`collaboration.weights`). Its loss R_i is beta-smooth and satisfies `|grad
R_i|^2 >= 2 mu (R_i - R_i^*)`; its excess loss is `R_i(x_i) - R_i^*`. All bounds come
from repeated use of

    excess^t <= (1 - eta^t mu) excess^{t-1} + (beta / 2) (eta^t sigma_{i,psi}^t)^2,

which holds in expectation given x^{t-1}, if `eta^t sum_k alpha_ik^t <= 1 / beta`.

Reference:
    Philippenko, Le Bars, Scaman, Massoulié, "Adaptive collaboration for online
    personalized distributed learning with heterogeneous clients", NeurIPS 2025.

Differences (each with a test; see docs/errata.md): Property 1's b is twice the printed
    b. Definition 2 squares b. The decreasing step C / (mu t) breaks the condition on
    step sizes at t = 1. We shift t, as in Theorem 4.7 of Bottou, Curtis, Nocedal
    (2018); this changes the bound and Corollary 1. Theorem 3's bound includes the cap
    on the step. With sigma_suf(eps) as variance, Theorem 2 bounds `E[excess^T
    1{excess^t >= eps for all t < T}]`: it counts only runs that have stayed above eps.
    The printed condition, that the mean excess^{T-1} is at least eps, is not enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from coterie import checks
from coterie.collaboration.weights import Criterion

Schedule = Callable[[int], float]
"""The step size eta^t of round t = 1, 2, ..."""


def quadratic_heterogeneity(
    matrices: Float[Tensor, "n d d"], shifts: Float[Tensor, "n d"]
) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """The pair (b, c) of Assumption 3 for quadratic losses (Property 1).

    For `R_i(x) = (x + xi_i)^T A_i (x + xi_i)` with symmetric A_i, the gradient is
    `2 A_i (x + xi_i)`. So `grad R_i - grad R_k` is
    `(I - A_k A_i^{-1}) grad R_i + 2 A_k (xi_i - xi_k)`. Since |u + v|^2 <= 2 |u|^2 +
    2 |v|^2, it follows that
    `|grad R_i - grad R_k|^2 <= b_ik^2 + c_ik |grad R_i|^2` with

        b_ik = 2 sqrt(2) |A_k (xi_i - xi_k)|,   c_ik = 2 |I - A_k A_i^{-1}|_2^2.

    Args:
        matrices: A_i, symmetric and invertible.
        shifts: xi_i.
    """
    between = shifts[:, None] - shifts[None, :]  # (N, N, D) xi_i - xi_k
    b = 2 * math.sqrt(2) * torch.einsum("kde,ike->ikd", matrices, between).norm(dim=2)
    # We compute with A_i - A_k, not I - A_k A_i^{-1}, so that c_ii is exactly 0.
    change = matrices[:, None] - matrices[None, :]  # (N, N, D, D)
    relative = change @ torch.linalg.inv(matrices)[:, None]
    c = 2 * torch.linalg.matrix_norm(relative, ord=2).square()
    return b, c


def sufficient_ratio(
    b: Float[Tensor, "n n"], c: Float[Tensor, "n n"], *, mu: float, eps: float
) -> Float[Tensor, "n n"]:
    """`(1 - b_ik^2 / (2 mu eps) - c_ik)_+`: at most r_ik while the excess is >= eps."""
    checks.number("mu", mu, above=0.0)
    checks.number("eps", eps, above=0.0)
    return (1 - b.square() / (2 * mu * eps) - c).clamp(min=0)


def sufficient_cluster(
    b: Float[Tensor, "n n"],
    c: Float[Tensor, "n n"],
    phi: Criterion,
    *,
    mu: float,
    eps: float,
) -> Bool[Tensor, "n n"]:
    """(N, N) row i marks N_i^*(eps): clients that help i until its excess is eps.

    `N_i^*(eps) = {k : psi((1 - b_ik^2 / (2 mu eps) - c_ik)_+) > 0}` (Definition 2).
    """
    ratio = sufficient_ratio(b, c, mu=mu, eps=eps)
    return ratio * phi(ratio) > 0


def sufficient_variance(
    b: Float[Tensor, "n n"],
    c: Float[Tensor, "n n"],
    precision: Float[Tensor, " n"],
    phi: Criterion,
    *,
    mu: float,
    eps: float,
) -> Float[Tensor, " n"]:
    """A bound on sigma_{i,psi}^2 while the excess is at least eps (Lemma 2).

    `sigma_{i,suf}^2(eps) = 1 / sum_k sigma_k^{-2} psi((1 - b_ik^2 / (2 mu eps)
    - c_ik)_+)` (Definition 2).
    """
    ratio = sufficient_ratio(b, c, mu=mu, eps=eps)
    psi = ratio * phi(ratio)
    return 1 / (psi @ precision)


def largest_step(weights: Float[Tensor, "n n"], beta: float) -> Float[Tensor, " n"]:
    """Each client's largest step size, `eta_i = 1 / (beta sum_k alpha_ik)` (Lemma 1).

    The paper asks for a step strictly below this, but its proofs also hold with
    equality. For the binary criterion, the step is at least lam / beta for all ratios
    (Remark 3).

    >>> largest_step(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), beta=2.0)
    tensor([0.2500, 0.5000])
    """
    checks.number("beta", beta, above=0.0)
    return 1 / (beta * weights.sum(1))


@dataclass(frozen=True)
class Problem:
    """What the bounds for one client depend on."""

    start: float  # excess loss of the first model
    variance: float  # at least sigma_{i,psi}^2 at every round, e.g. the sufficient one
    beta: float  # smoothness
    mu: float  # strong convexity, or the constant of Polyak and Łojasiewicz
    cap: float  # at most `largest_step` at every round

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        checks.number("start", self.start, at_least=0.0)
        checks.number("variance", self.variance, above=0.0)
        checks.number("beta", self.beta, above=0.0)
        checks.number("mu", self.mu, above=0.0, at_most=self.beta)
        # Weights of Definition 1 add up to at least 1.
        checks.number("cap", self.cap, above=0.0, at_most=1 / self.beta)


def bound_over_time(
    start: float,
    variances: Float[Tensor, " t"],
    *,
    lr: float,
    mu: float,
    beta: float,
) -> Float[Tensor, " t+1"]:
    """Bounds on the expected excess loss after 0, 1, ..., T rounds (Theorem 1).

    `(1 - eta mu)^T excess^0 + (beta eta^2 / 2) sum_t (1 - eta mu)^{T-t}
    (sigma_{i,psi}^t)^2`. The bound is linear in the variances. So if variances are
    random, give their means.

    Args:
        start: excess^0.
        variances: entry t - 1 is (sigma_{i,psi}^t)^2.
        lr: eta, at most `largest_step` in every round.
        mu: strong convexity, or the constant of Polyak and Łojasiewicz.
        beta: smoothness.
    """
    bounds = [variances.new_tensor(start)]
    for variance in variances:
        bounds.append((1 - lr * mu) * bounds[-1] + beta * lr**2 / 2 * variance)
    return torch.stack(bounds)


def constant_steps(problem: Problem, lr: float) -> Schedule:
    """The rule `eta^t = lr`; Theorem 2, first row."""
    checks.number("lr", lr, above=0.0, at_most=problem.cap)
    return lambda t: lr


def constant_bound(problem: Problem, rounds: int, lr: float) -> float:
    """`(1 - eta mu)^T excess^0 + eta beta sigma^2 / (2 mu)`; Theorem 2, first row."""
    start, variance, beta, mu, _ = astuple(problem)
    lr = constant_steps(problem, lr)(rounds)
    return (1 - lr * mu) ** rounds * start + lr * beta / (2 * mu) * variance


def horizon_steps(problem: Problem, rounds: int) -> Schedule:
    """`eta^t = ln(2 T mu^2 excess^0 / (beta sigma^2)) / (mu T)`; Theorem 2, second row.

    Raises:
        InputError: if the horizon T is too short for a step in (0, cap].
    """
    start, variance, beta, mu, cap = astuple(problem)
    signal = 2 * rounds * mu**2 * start / (beta * variance)
    lr = math.log(signal) / (mu * rounds) if signal > 1 else 0.0
    if not 0 < lr <= cap:
        raise checks.InputError(
            "`rounds` must be so large that the horizon-dependent step is greater than "
            f"0 and at most {cap:.4g}, but for {rounds} rounds it is {lr:.4g}."
        )
    return lambda t: lr


def horizon_bound(problem: Problem, rounds: int) -> float:
    """`beta sigma^2 / (2 mu^2 T) (ln(2 T mu^2 excess^0 / (beta sigma^2)) + 1)`.

    Theorem 2, second row; raises as `horizon_steps` does.
    """
    _, variance, beta, mu, _ = astuple(problem)
    logarithm = horizon_steps(problem, rounds)(rounds) * mu * rounds
    return beta * variance / (2 * mu**2 * rounds) * (logarithm + 1)


def decreasing_steps(problem: Problem, growth: float = 2.0) -> Schedule:
    """`eta^t = C / (mu (gamma + t))` with eta^1 = cap; Theorem 2, third row, corrected.

    The printed rule has gamma = 0. It begins with C / mu > 1 / beta, but the theorem's
    own condition excludes such steps.

    Args:
        problem: the problem; its cap gives `gamma = C / (mu cap) - 1`.
        growth: C > 1.
    """
    checks.number("growth", growth, above=1.0)
    shift = _shift(problem, growth)
    return lambda t: growth / (problem.mu * (shift + t))


def decreasing_bound(problem: Problem, rounds: int, growth: float = 2.0) -> float:
    """`nu / (gamma + T + 1)` for `decreasing_steps`; Theorem 2, third row, corrected.

    `nu = max(beta sigma^2 C^2 / (2 mu^2 (C - 1)), (gamma + 1) excess^0)`, by Theorem
    4.7 of Bottou, Curtis, Nocedal, "Optimization methods for large-scale machine
    learning", SIAM Review, 2018.
    """
    return _nu(problem, growth) / (_shift(problem, growth) + rounds + 1)


def sample_complexity(problem: Problem, eps: float, growth: float = 2.0) -> int:
    """The number of rounds after which `decreasing_bound` is at most eps.

    `T = nu / eps - gamma - 1`, rounded up. For small excess^0, this is the number in
    Corollary 1, `beta sigma^2 C^2 / (C - 1) / (2 mu^2 eps)`, minus (gamma + 1). The
    printed formula leaves out the time until the start has no more effect.
    """
    checks.number("eps", eps, above=0.0)
    rounds = _nu(problem, growth) / eps - _shift(problem, growth) - 1
    return max(0, math.ceil(rounds))


def stationary_step(
    rounds: int, *, start: float, variance: float, beta: float, cap: float
) -> float:
    """`eta = min(sqrt(2 excess^0 / (T beta sigma^2)), cap)`; Theorem 3."""
    return min(math.sqrt(2 * start / (rounds * beta * variance)), cap)


def stationary_bound(
    rounds: int, *, start: float, variance: float, beta: float, cap: float
) -> float:
    """A bound on `(1/T) sum_t E |grad R_i(x^{t-1})|^2`; Theorem 3, corrected.

    `2 excess^0 / (T eta) + eta beta sigma^2` with eta from `stationary_step`. If eta is
    below the cap, this bound equals the printed `2 sqrt(2 excess^0 beta sigma^2 / T)`.
    Theorem 3 has no mu, and so no `sufficient_variance`: give a bound on
    sigma_{i,psi}^2 itself.
    """
    checks.number("start", start, above=0.0)
    lr = stationary_step(rounds, start=start, variance=variance, beta=beta, cap=cap)
    return 2 * start / (rounds * lr) + lr * beta * variance


def _shift(problem: Problem, growth: float) -> float:
    """The smallest gamma for which the first step `C / (mu (gamma + 1))` is allowed."""
    return growth / (problem.mu * problem.cap) - 1


def _nu(problem: Problem, growth: float) -> float:
    """The numerator of Theorem 4.7 of Bottou et al."""
    start, variance, beta, mu, _ = astuple(problem)
    checks.number("growth", growth, above=1.0)
    noise = beta * variance * growth**2 / (2 * mu**2 * (growth - 1))
    return max(noise, (_shift(problem, growth) + 1) * start)

"""A model that walks on a graph: step sizes, bounds and lower bounds.

A walk v_0, v_1, ... is a Markov chain with the stationary distribution pi, and

    x_{t+1} = x_t - gamma g_{v_t}(x_t)                                (7.2), MC-SGD

finds the minimum of f = sum_v pi_v f_v. Times tau_mix, tau_hit and tau_cov are defined
in `coterie.graphs.chains` and in `.chains` of this package. F_0, the `start`, is f(x_0)
- f^*, and B^2, the `distance`, is |x_0 - x^*|^2. If a rate holds only up to constants
and logarithms, its docstring says so.

References:
    Even, PhD thesis, 2024, chapter 7, tel-04877971.
    Even, "Stochastic gradient descent under Markovian sampling schemes", ICML 2023,
    arXiv 2302.14428.

Differences (each with a test; see docs/errata.md): Matthews' bound has H_n, because
returns count. The noise term of Theorem 7.3.1 has tau. In Theorem 7.3.2, the step has L
and the rate 1/384. The variance with two states is twice the printed variance. Theorem
7.6.2 has 1 / (4 L) and 1 / L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.graphs.chains import stationary_law


@dataclass(frozen=True)
class TokenProblem:
    """The number of steps, the mixing time of the walk, and constants of the losses."""

    steps: int  # T
    mixing: float  # tau_mix, and tau_mix(1/4) where losses are strongly convex
    beta: float = 1.0  # L, smoothness
    mu: float = 0.0  # strong convexity, or of a PL inequality
    variance: float = 0.0  # sigma_bar^2 of |grad f_v - grad f|, or sigma_*^2 at x^*

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        checks.integer("steps", self.steps, at_least=1)
        checks.number("mixing", self.mixing, above=0.0)
        checks.number("beta", self.beta, above=0.0)
        checks.number("mu", self.mu, at_least=0.0, at_most=self.beta)
        checks.number("variance", self.variance, at_least=0.0)

    @property
    def delay(self) -> float:
        """`tau = tau_mix ln T`, for `T >= 2 tau_mix ln tau_mix`; Theorem 7.3."""
        least = 2 * self.mixing * math.log(max(self.mixing, 1.0))
        checks.integer("steps", self.steps, at_least=max(2, math.ceil(least)))
        return self.mixing * math.log(self.steps)


# Times of walks.


def reversible_mixing(relaxation: float, smallest: float, eps: float = 0.0) -> int:
    """`tau_mix(eps) <= ceil(tau_rel ln(1 / (eps pi_min)))`; Lemma 7.2.1.

    Without eps, it bounds tau_mix, which has eps = pi_min / 2, by `ceil(tau_rel ln(2 /
    pi_min^2))`.

    >>> reversible_mixing(10.0, 0.25), reversible_mixing(10.0, 0.25, eps=0.01)
    (35, 60)
    """
    return math.ceil(relaxation * math.log(1 / ((eps or smallest / 2) * smallest)))


def hitting_bound(mixing: float, smallest: float) -> float:
    """`tau_hit <= 2 tau_mix / pi_min`; Lemma 7.2.2."""
    return 2 * mixing / smallest


def regular_hitting_bound(edges: int, diameter: int, degree: int) -> float:
    """`tau_hit <= 2 |E| diameter / d` on an edge-transitive graph; Lemma 7.2.3.

    For the simple walk with equal degrees d, the bound is n times the diameter.
    """
    return 2 * edges * diameter / degree


def cover_bound(hitting: float, clients: int) -> float:
    """Matthews' bound `tau_cov <= H_n tau_hit`, where the way back to the start counts.

    Theorem 7.1 prints H_{n-1}.

    >>> round(cover_bound(6.0, 6), 2)  # exact for all six of six coupons
    14.7
    """
    return hitting * sum(1 / k for k in range(1, clients + 1))


# MC-SGD.


def smooth_step(start: float, problem: TokenProblem) -> float:
    """`min(1 / (48 L tau), sqrt(F_0 / (T L tau sigma_bar^2)))`; Theorem 7.3.1."""
    cap = 1 / (48 * problem.beta * problem.delay)
    noise = problem.steps * problem.beta * problem.delay * problem.variance
    return min(cap, math.sqrt(start / noise)) if noise else cap


def smooth_noise(start: float, problem: TokenProblem) -> float:
    """`7 sqrt(L F_0 sigma_bar^2 tau / T)`, the noise term of E|grad f|^2; (7.9)."""
    noise = problem.beta * start * problem.variance * problem.delay
    return 7 * math.sqrt(noise / problem.steps)


def smooth_rate(start: float, problem: TokenProblem) -> float:
    """E|grad f|^2 at a random iterate, up to constants and logarithms; Theorem 7.3.1.

    `L Delta tau_mix / T + (sqrt(L Delta sigma_bar^2 tau_mix) + sigma_bar^2) / sqrt(T)`
    with Delta = `start`, at least F_0 + sigma_max^2 / L.
    """
    scale = problem.beta * start * problem.mixing
    noise = math.sqrt(scale * problem.variance) + problem.variance
    return scale / problem.steps + noise / math.sqrt(problem.steps)


def pl_step(start: float, problem: TokenProblem) -> float:
    """The step of Theorem 7.3.2, under a PL inequality.

    `min(8 ln(T (F_0 + sigma^2) / sigma^2) / (mu T), 1 / (64 L (5 tau + 1)))`.
    """
    mu = checks.number("mu", problem.mu, above=0.0)
    cap = 1 / (64 * problem.beta * (5 * problem.delay + 1))
    if not problem.variance:
        return cap
    ratio = problem.steps * (start + problem.variance) / problem.variance
    return min(8 * math.log(ratio) / (mu * problem.steps), cap)


def pl_rate(start: float, problem: TokenProblem) -> float:
    """The gap f - f^*, up to constants and logarithms; Theorem 7.3.2.

    `e^{-T / (384 kappa tau)} Delta + tau_mix sigma_bar^2 / (mu T)`.
    """
    mu = checks.number("mu", problem.mu, above=0.0)
    rate = mu / (384 * problem.beta * problem.delay)
    noise = problem.mixing * problem.variance / (mu * problem.steps)
    return math.exp(-rate * problem.steps) * start + noise


def pathwise_bound(
    noise: Float[Tensor, "t d"], distance: float, *, lr: float, beta: float, mu: float
) -> float:
    """A bound on |x_T - x^*|^2 for any sequence of clients; Theorem 7.4.

    `2 q^T (B^2 + gamma^2 |G_0|^2) + gamma^3 L sum_{t<T} q^{T-1-t} |G_t|^2` with
    `q = 1 - gamma mu` and `G_t = sum_{t<=s<T} grad f_{v_s}(x^*)`, for gamma L < 1.

    Args:
        noise: gradients at the optimum, in the order of the walk.
        distance: B^2.
        lr: gamma.
        beta: L of every loss.
        mu: strong convexity of every loss.
    """
    sums, q, decay = _noise_sums(noise, lr, beta, mu)
    first = 2 * q ** len(noise) * (distance + lr**2 * float(sums[0]))
    return first + lr**3 * beta * float(decay @ sums) / q


def stated_pathwise_bound(
    noise: Float[Tensor, "t d"], distance: float, *, lr: float, beta: float, mu: float
) -> float:
    """`2 q^T B^2 + (2 gamma^3 T L / mu) sum_s q^{T-s} |G_s|^2`; Theorem 7.4.

    The conditions are the same as for `pathwise_bound`.
    """
    sums, q, decay = _noise_sums(noise, lr, beta, mu)
    scale = 2 * lr**3 * len(noise) * beta / checks.number("mu", mu, above=0.0)
    return 2 * q ** len(noise) * distance + scale * float(decay @ sums)


def _noise_sums(
    noise: Tensor, lr: float, beta: float, mu: float
) -> tuple[Tensor, float, Tensor]:
    """|G_t|^2 for every t, the factor q, and q^{T-t}."""
    checks.number("lr", lr, above=0.0, below=1 / beta)
    sums = noise.double().flip(0).cumsum(0).flip(0).square().sum(1)
    q = 1 - lr * checks.number("mu", mu, at_least=0.0, at_most=beta)
    return sums, q, q ** torch.arange(len(noise), 0, -1, dtype=torch.float64)


def interpolation_bound(distance: float, steps: int, *, lr: float, mu: float) -> float:
    """`2 (1 - gamma mu)^T B^2` if all losses have the same minimum; Theorem 7.4."""
    return 2 * (1 - lr * mu) ** steps * distance


def summed_noise_bound(problem: TokenProblem) -> float:
    """`E|sum_{t<T} grad f_{v_t}(x^*)|^2 <= sigma_*^2 (4 tau + T (1 + 8 tau))`.

    Lemma 7.4.2 with tau = tau_mix(1/4); sigma_*^2 bounds the noise of every client.
    """
    tau, steps = problem.mixing, problem.steps
    return problem.variance * (4 * tau + steps * (1 + 8 * tau))


def strongly_convex_step(
    distance: float, problem: TokenProblem, *, local: float = 0.0
) -> float:
    """`min(1 / L, ln(max(2, mu^3 T B^2 / (L s))) / (mu T))`; Corollary 7.4.1.

    The thesis only asks for a good step; this step is ours. s is defined in
    `strongly_convex_rate`.
    """
    mu = checks.number("mu", problem.mu, above=0.0)
    noise = problem.beta * (local + problem.mixing * problem.variance)
    if not noise:
        return 1 / problem.beta
    ratio = mu**3 * problem.steps * distance / noise
    return min(1 / problem.beta, math.log(max(2.0, ratio)) / (mu * problem.steps))


def strongly_convex_rate(
    distance: float, problem: TokenProblem, *, local: float = 0.0
) -> float:
    """E|x_T - x^*|^2 up to constants and logarithms; Corollary 7.4.1, Theorem 7.5.

    `2 e^{-T / kappa} B^2 + L s / (mu^3 T)` with `s = sigma_local^2 + tau_mix(1/4)
    sigma_*^2`. The noise within clients, sigma_local^2, is the same for every walk.
    """
    mu = checks.number("mu", problem.mu, above=0.0)
    noise = problem.beta * (local + problem.mixing * problem.variance)
    forgotten = 2 * math.exp(-problem.steps * mu / problem.beta) * distance
    return forgotten + noise / (mu**3 * problem.steps)


def two_state_moment(flip: float, lr: float) -> float:
    """The limit of E x^2 for f_0 = (x - 1)^2 / 2, f_1 = (x + 1)^2 / 2; Prop. 7.4.1.

    The walk goes to the other state with probability p = `flip`. Then E x^2 is `gamma /
    (2 - gamma) (1 + (1 - gamma) r) / (1 - (1 - gamma) r)`, `r = 1 - 2 p`, about gamma
    (1 - p) / (2 p) for small steps.

    >>> round(two_state_moment(0.1, 0.05), 5), two_state_moment(0.5, 1.0)
    (0.18803, 1.0)
    """
    memory = (1 - lr) * (1 - 2 * flip)
    return lr / (2 - lr) * (1 + memory) / (1 - memory)


# MC-SAG.


def warm_sag_step(delay: float, hitting: float, beta: float = 1.0) -> float:
    """`1 / (2 L (tau_hit + delay))` if h_v begins at the gradients; (7.7)."""
    return 1 / (2 * beta * (hitting + delay))


def sag_step(delay: float, hitting: float, beta: float = 1.0) -> float:
    """`1 / (4 L (tau_hit + delay))` for any start of h_v; Theorem 7.6.2."""
    return warm_sag_step(delay, hitting, 2 * beta)


def warm_sag_bound(
    start: float, steps: int, *, hitting: float, cover: float, beta: float = 1.0
) -> float:
    """`E min_{t<T} |grad f|^2 <= 4 L F_0 (tau_hit + tau_cov) / T`; Theorem 7.6.1."""
    return 4 * beta * start * (hitting + cover) / steps


def sag_bound(
    start: float,
    apart: float,
    steps: int,
    *,
    hitting: float,
    cover: float,
    beta: float = 1.0,
) -> float:
    """`8 L F_0 (tau_hit + tau_cov) / T + 2 tau_cov apart / T`, for any start of h_v.

    Theorem 7.6.2; `apart` is the mean of |grad f_v(x_0) - h_v|^2 over clients.
    """
    double = warm_sag_bound(start, steps, hitting=hitting, cover=cover, beta=2 * beta)
    return double + 2 * cover * apart / steps


def sag_descent(
    lr: float,
    gradient: Float[Tensor, " d"],
    mean: Float[Tensor, " d"],
    drifts: Float[Tensor, "n d"],
    *,
    beta: float = 1.0,
) -> float:
    """A bound on f(x_{t+1}) - f(x_t) for gamma_t <= 1 / (2 L); Lemma 7.5.1.

    `-gamma/2 |grad f(x_t)|^2 - gamma/4 |h_bar|^2 + gamma L^2 / (2 n) sum_v |drift_v|^2`

    Args:
        lr: gamma_t.
        gradient: the gradient of f, at x_t.
        mean: h_bar_{t+1}.
        drifts: row v is `x_{d_v(t)} - x_t`, the sum of steps since the last visit to v.
        beta: L.
    """
    checks.number("lr", lr, above=0.0, at_most=1 / (2 * beta))
    gained = gradient.square().sum() / 2 + mean.square().sum() / 4
    lost = beta**2 / 2 * drifts.square().sum(1).mean()
    return lr * float(lost - gained)


def delay_bound(steps: int, cover: float) -> float:
    """`sum_{t<T} E max_v (t - d_v(t)) <= T tau_cov`; Lemma 7.5.3."""
    return steps * cover


# Lower bounds for all methods.


def lower_bound(
    scale: float, steps: int, *, hitting: float, beta: float = 1.0, mu: float = 0.0
) -> float:
    """A lower bound on the error after T steps, up to a constant; Theorem 7.2.

    `L scale (tau_hit / T)^2`, or `L scale e^{-T / (sqrt(kappa) tau_hit)}` for mu > 0.
    With scale = F_0, it bounds |grad f|^2 of smooth losses; with scale = B^2, it bounds
    f - f^* of convex losses.
    """
    if mu:
        return beta * scale * math.exp(-steps * math.sqrt(mu / beta) / hitting)
    return beta * scale * (hitting / steps) ** 2


def hard_instance(
    dimension: int, *, alpha: float = 1.0, b: float = 1.0
) -> tuple[Float64[Tensor, "2 d d"], Float64[Tensor, "2 d"]]:
    """Hessians A and vectors c of pi_v f_v and pi_w f_w, with gradients A x - c; 7.3.

    The loss of client v has all products x(2k-1) x(2k). The loss of client w has all
    products x(2k) x(2k+1). A run starts at 0. Each time the walk goes from one client
    to the other, one more coordinate can become different from 0:

        pi_v f_v = sum_{k>=1} (x(2k)^2 - x(2k-1) x(2k)) + alpha x(0)^2 / 2 - b x(0)
        pi_w f_w = sum_{k>=0} (x(2k+1)^2 - x(2k+1) x(2k))
    """
    a = torch.zeros(2, dimension, dimension, dtype=torch.float64)
    c = torch.zeros(2, dimension, dtype=torch.float64)
    a[0, 0, 0], c[0, 0] = alpha, b
    for k in range(1, dimension):
        whose = k % 2
        a[whose, k, k] = 2.0
        a[whose, k, k - 1] = a[whose, k - 1, k] = -1.0
    return a, c


def alternations(path: Int[Tensor, " t"], v: int, w: int) -> Int[Tensor, " t"]:
    """How many coordinates of the hard instance can differ from 0 after each step.

    The first coordinate needs a visit to v, the next coordinate needs a visit to w, and
    so on in turn.

    >>> alternations(torch.tensor([1, 0, 0, 2, 1, 1, 0]), 0, 1).tolist()
    [0, 1, 1, 1, 2, 2, 3]
    """
    found, count = [], 0
    for at in path.tolist():
        count += at == (v, w)[count % 2]
        found.append(count)
    return torch.tensor(found)


# Messages and time.


def communications(
    eps: float, *, clients: int, edges: int, mixing: float, hitting: float
) -> dict[str, float]:
    """The messages until |grad f|^2 <= eps, up to constants and logs; Table 7.1."""
    checks.number("eps", eps, above=0.0)
    return {
        "gossip": edges * mixing / eps,
        "walkman": clients * mixing**2 / eps,
        "token_sgd": mixing / eps**2,
        "token_sag": hitting / eps,
    }


def hop_time(chain: Float[Tensor, "n n"], seconds: Float[Tensor, "n n"]) -> float:
    """`sum_{v,w} pi_v P_vw T_{v->w}`, the mean time of a token's step; 7.6.3.

    Args:
        chain: P, sparse or dense.
        seconds: T_{v->w}, the seconds for computing at v and then sending to w.
    """
    law = stationary_law(chain)
    return float((law[:, None] * chain.to_dense().double() * seconds.double()).sum())


def round_time(chain: Float[Tensor, "n n"], seconds: Float[Tensor, "n n"]) -> float:
    """`max T_{v->w}` over pairs that send: the time of a synchronous round; 7.6.3."""
    return float(seconds.double()[chain.to_dense() > 0].max())

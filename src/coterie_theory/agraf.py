"""AGRAF, asynchronous gradient descent on a graph: step sizes and bounds.

At each step k, n nodes average along a graph, and the nodes in the set I_k apply a
gradient:

    x^{k+1} = W_k x^k - gamma g^k,   g_v^k = g_v(x_v^{s(k,v)}) if v in I_k else 0  (5.3)

Node v starts a gradient right after it has applied its last gradient. So the gradient
that v applies at step k was taken at the model that v had at step `s(k, v) = 1 + max{l
< k : v in I_l}`. For its first gradient, s(k, v) = 0. The matrices W_k mix with the
constant `rho_bar` (`coterie_theory.mixing`). A gradient g moves the mean of all models
by -(gamma / n) g. N is the number of gradients, `N = sum_{k < K} |I_k|`. There are two
settings:

- homogeneous: all nodes have the loss f, and the sets I_k are arbitrary (`EqualNodes`);
- sampling: node v is in I_k with probability p_v, independently over k, and f is the
  mean of the f_v with weights proportional to p_v (`SampledNodes`).

Every bound has the form `A / (gamma calls) + b gamma + c gamma^2` for gamma <= cap; it
is a `Tradeoff`. Here `calls` is N in the first setting and K in the second, and gamma
is the step size of a node. In some places, the thesis has eta = gamma / n. F_0, the
`start`, is at least f(x^0) - f^*. D, the `radius`, is at least |x_hat^0 - x^*|. This is
only a little more than |x^0 - x^*| (`virtual_radius`). Proofs do not track all
constants, so allow for a factor of 4.

References are those of `mixing`.

Differences (each with a test; see docs/errata.md): s(k, v) is one step later than
printed. Theorem 5.4 prints the inverse of its step sizes. Theorem 5.3.2 needs larger
constants and no Lipschitz constant. The last row of Table 5.1 holds for one node at a
time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from coterie import checks


@dataclass(frozen=True)
class Tradeoff:
    """A bound `A / (gamma calls) + b gamma + c gamma^2` for gamma <= cap."""

    start: float  # A
    linear: float  # b
    quadratic: float  # c
    cap: float
    calls: float

    def at(self, lr: float) -> float:
        """The bound for the step gamma = lr."""
        checks.number("lr", lr, above=0.0, at_most=self.cap * (1 + 1e-12))
        noise = self.linear * lr + self.quadratic * lr**2
        return self.start / (lr * self.calls) + noise

    @property
    def step(self) -> float:
        """The step of `tune_eta`."""
        return tune_eta(
            self.start, self.linear, self.quadratic, self.calls, eta_max=self.cap
        )

    @property
    def rate(self) -> float:
        """The rate `A / (cap K) + 2 sqrt(A b / K) + 2 (A^2 c / K^2)^{1/3}` for K calls.

        The bound at `step` is at most this rate.
        """
        share = self.start / self.calls
        cubic = (share**2 * self.quadratic) ** (1 / 3)
        return share / self.cap + 2 * math.sqrt(share * self.linear) + 2 * cubic

    @property
    def crossover(self) -> float:
        """The number of calls K from which on `step` is sqrt(A / (b K)).

        This is `max(A / (b cap^2), A c^2 / b^3)`, and infinite without noise. With more
        calls, only noise limits the error (the statistical regime).
        """
        if not self.linear:
            return math.inf
        speed = self.start / self.linear
        return speed * max(1 / self.cap, self.quadratic / self.linear) ** 2


def tune_eta(a: float, b: float, c: float, calls: float, *, eta_max: float) -> float:
    """A step near the best: `min(eta_max, sqrt(A / (b K)), (A / (c K))^{1/3})`.

    >>> tune_eta(1.0, 4.0, 0.0, 100, eta_max=1.0)
    0.05
    """
    for name, value in {"a": a, "calls": calls}.items():
        checks.number(name, value, above=0.0)
    root = math.sqrt(a / (b * calls)) if b else math.inf
    cubic = (a / (c * calls)) ** (1 / 3) if c else math.inf
    return min(eta_max, root, cubic)


@dataclass(frozen=True)
class EqualNodes:
    """n nodes with equal losses, whose gradients arrive in any order."""

    clients: int  # n
    rho_bar: float
    gradients: int  # N
    beta: float = 1.0  # L, smoothness
    variance: float = 0.0  # sigma^2, of a gradient

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        checks.integer("clients", self.clients, at_least=1)
        checks.number("rho_bar", self.rho_bar, above=0.0, at_most=1.0)
        checks.integer("gradients", self.gradients, at_least=1)
        checks.number("beta", self.beta, above=0.0)
        checks.number("variance", self.variance, at_least=0.0)


@dataclass(frozen=True, eq=False)  # tensors do not compare
class SampledNodes:
    """n nodes with different losses, which take part at random."""

    probabilities: Tensor  # (n,) p_v, proportional to the weights of the losses
    rho_bar: float
    steps: int  # K
    beta: float = 1.0  # L, smoothness
    variance: float = 0.0  # sigma^2, of a gradient
    zeta: float = 0.0  # zeta^2 >= sum_v q_v |grad f_v - grad f|^2
    first: float = 0.0  # sum_v |grad f_v(x^0)|^2

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        p = checks.positive(
            "probabilities", self.probabilities, len(self.probabilities)
        )
        checks.number("largest probability", float(p.max()), at_most=1.0)
        checks.number("rho_bar", self.rho_bar, above=0.0, at_most=1.0)
        checks.integer("steps", self.steps, at_least=1)
        checks.number("beta", self.beta, above=0.0)
        checks.number("variance", self.variance, at_least=0.0)
        checks.number("zeta", self.zeta, at_least=0.0)
        checks.number("first", self.first, at_least=0.0)

    @property
    def shares(self) -> tuple[float, float, float]:
        """p_min, p_bar and p_max."""
        p = self.probabilities.double()
        return float(p.min()), float(p.mean()), float(p.max())


# Convex losses.


def lipschitz_tradeoff(radius: float, bound: float, network: EqualNodes) -> Tradeoff:
    """A bound on the excess of the mean of x_v^k, v in I_k, if |g| <= B; Theorem 5.1.1.

    `n D^2 / (2 gamma N) + (3 gamma B^2 / 2)(1 + 1 / rho_bar)`, for any gamma.
    """
    noise = 1.5 * bound**2 * (1 + 1 / network.rho_bar)
    start = network.clients * radius**2 / 2
    return Tradeoff(start, noise, 0.0, math.inf, network.gradients)


def lipschitz_step(radius: float, bound: float, network: EqualNodes) -> float:
    """The step `gamma = n D / sqrt(2 N B^2 (3 n + 2 n / rho_bar))`; Theorem 5.1.1."""
    spread = 2 * network.gradients * network.clients * (3 + 2 / network.rho_bar)
    return network.clients * radius / (bound * math.sqrt(spread))


def lipschitz_rate(radius: float, bound: float, network: EqualNodes) -> float:
    """The bound `2 sqrt(2 B^2 D^2 (3 n + 2 n / rho_bar) / N)` with `lipschitz_step`."""
    spread = network.clients * (3 + 2 / network.rho_bar) / network.gradients
    return 2 * bound * radius * math.sqrt(2 * spread)


def lipschitz_sampled_step(radius: float, bound: float, network: SampledNodes) -> float:
    """The step of Theorem 5.1.2, up to a constant, with N = n p_bar K.

    `gamma = n D / (B sqrt(N (n + sqrt(p_max) n / rho_bar
    + n^{3/2} p_max sqrt(K / N))))`.
    """
    n, (_, p_bar, p_max) = len(network.probabilities), network.shares
    gradients = n * p_bar * network.steps
    spread = n * (1 + math.sqrt(p_max) / network.rho_bar)
    spread += n**1.5 * p_max * math.sqrt(network.steps / gradients)
    return n * radius / (bound * math.sqrt(gradients * spread))


def lipschitz_sampled_rate(radius: float, bound: float, network: SampledNodes) -> float:
    """The rate `B D sqrt(n sqrt(p_max) (sqrt(kappa_p) + 1 / rho_bar) / N)`.

    Theorem 5.1.2, up to a constant, with kappa_p = p_max / p_bar and N = n p_bar K.
    """
    _, p_bar, p_max = network.shares
    spread = math.sqrt(p_max) * (math.sqrt(p_max / p_bar) + 1 / network.rho_bar)
    return bound * radius * math.sqrt(spread / (p_bar * network.steps))


def smooth_lipschitz_tradeoff(
    radius: float, bound: float, network: EqualNodes
) -> Tradeoff:
    """The bound of `lipschitz_tradeoff` for losses that are also smooth; Theorem 5.2.

    `n D^2 / (gamma N) + gamma sigma^2 / n + gamma^2 L (16 sigma^2 / rho_bar + 8 B^2)`
    for `gamma <= 1 / (4 L (1 + 2 / rho_bar))`.
    """
    n, beta, rho_bar = network.clients, network.beta, network.rho_bar
    quadratic = beta * (16 * network.variance / rho_bar + 8 * bound**2)
    cap = 1 / (4 * beta * (1 + 2 / rho_bar))
    start = n * radius**2
    return Tradeoff(start, network.variance / n, quadratic, cap, network.gradients)


def smooth_lipschitz_sampled_tradeoff(
    radius: float, bound: float, network: SampledNodes
) -> Tradeoff:
    """A bound on the mean excess of x_bar^k over k < K; 5.E.2.

    `2 D^2 / (gamma p_bar K) + 2 gamma (sigma^2 + 2 zeta^2) / n + gamma^2 L (8 B^2
    + 24 sigma^2 p_max / rho_bar + 96 zeta^2 p_max / rho_bar^2
    + 48 p_max G_0 / (n p_bar rho_bar^2 K))` with G_0 = `first`, for
    `gamma <= min(1 / 16, rho_bar / (14 sqrt(p_max)), rho_bar) / L`.
    """
    n, (_, p_bar, p_max) = len(network.probabilities), network.shares
    rho_bar, beta, zeta2 = network.rho_bar, network.beta, network.zeta**2
    gradients = 96 * zeta2 + 48 * network.first / (n * p_bar * network.steps)
    spread = p_max * (24 * network.variance / rho_bar + gradients / rho_bar**2)
    cap = min(1 / 16, rho_bar / (14 * math.sqrt(p_max)), rho_bar) / beta
    linear = 2 * (network.variance + 2 * zeta2) / n
    quadratic = beta * (8 * bound**2 + spread)
    return Tradeoff(2 * radius**2 / p_bar, linear, quadratic, cap, network.steps)


def smooth_tradeoff(radius: float, longest: float, network: EqualNodes) -> Tradeoff:
    """A bound on the excess of the mean of x_v^k, v in I_k; smooth losses, Thm 5.3.1.

    `n D^2 / (gamma N) + 3 gamma sigma^2 / n + 16 gamma^2 L sigma^2 / rho_bar` for
    `gamma <= 1 / (4 L (1 + 2 / rho_bar + 4 sqrt(tau_max / n)))`.

    Args:
        radius: D.
        longest: tau_max, as from `longest_wait`.
        network: the other constants.
    """
    n, beta, variance = network.clients, network.beta, network.variance
    cap = 1 / (4 * beta * (1 + 2 / network.rho_bar + 4 * math.sqrt(longest / n)))
    quadratic = 16 * beta * variance / network.rho_bar
    start = n * radius**2
    return Tradeoff(start, 3 * variance / n, quadratic, cap, network.gradients)


def smooth_sampled_tradeoff(radius: float, network: SampledNodes) -> Tradeoff:
    """A bound on the mean excess of x_bar^k over k < K; smooth losses, Theorem 5.3.2.

    The bound is twice `2 D^2 / (gamma p_bar K) + 2 gamma (sigma^2 + 2 zeta^2) / n +
    gamma^2 L (16 sigma^2 / n + 32 zeta^2 p_bar / p_min + 48 sigma^2 p_max / rho_bar +
    384 zeta^2 p_max / rho_bar^2)`, for `gamma <= min(1 / 24, rho_bar / (24
    sqrt(p_max)), sqrt(p_min / p_max) / 14, rho_bar sqrt(p_bar / p_max) / 20) / L`.
    """
    n, (p_min, p_bar, p_max) = len(network.probabilities), network.shares
    rho_bar, variance, zeta2 = network.rho_bar, network.variance, network.zeta**2
    spread = 16 * variance / n + 32 * zeta2 * p_bar / p_min
    spread += 48 * variance * p_max / rho_bar + 384 * zeta2 * p_max / rho_bar**2
    caps = (
        1 / 24,
        rho_bar / (24 * math.sqrt(p_max)),
        math.sqrt(p_min / p_max) / 14,
        rho_bar * math.sqrt(p_bar / p_max) / 20,
    )
    linear, cap = 4 * (variance + 2 * zeta2) / n, min(caps) / network.beta
    quadratic = 2 * network.beta * spread
    return Tradeoff(4 * radius**2 / p_bar, linear, quadratic, cap, network.steps)


# Losses that need not be convex: bounds on mean E |grad f(x_bar^k)|^2.


def nonconvex_tradeoff(start: float, longest: float, network: EqualNodes) -> Tradeoff:
    """A bound on E |grad f(x_bar^k)|^2, the mean with weights |I_k|; Theorem 5.4.1.

    `2 n F_0 / (gamma N) + 2 gamma L sigma^2 / n + 2 gamma^2 L^2 sigma^2 / rho_bar` for
    `gamma <= min(1 / (4 L), 1 / (8 L (sqrt(tau_max / n) + 1 / rho_bar)))`. For losses
    that differ, Remark 5.4.1 adds a term O(zeta^2).
    """
    n, beta, variance = network.clients, network.beta, network.variance
    slow = math.sqrt(longest / n) + 1 / network.rho_bar
    cap = min(1 / 4, 1 / (8 * slow)) / beta
    linear, quadratic = 2 * beta / n, 2 * beta**2 / network.rho_bar
    return Tradeoff(
        2 * n * start, linear * variance, quadratic * variance, cap, network.gradients
    )


def nonconvex_sampled_tradeoff(start: float, network: SampledNodes) -> Tradeoff:
    """A bound on E |grad f(x_bar^k)|^2, the mean over k < K; Theorem 5.4.2.

    `4 F_0 / (gamma p_bar K) + 4 gamma L (sigma^2 + 2 zeta^2) / n + 16 gamma^2 L^2 p_max
    (sigma^2 / rho_bar + 4 zeta^2 / rho_bar^2 + 2 G_0 / (n p_bar rho_bar^2 K))` with
    G_0 = `first`, for
    `gamma <= min(1 / 24, rho_bar / (16 sqrt(p_max)), sqrt(p_min / p_bar) / 4) / L`.
    """
    n, (p_min, p_bar, p_max) = len(network.probabilities), network.shares
    rho_bar, beta, zeta2 = network.rho_bar, network.beta, network.zeta**2
    gradients = 4 * zeta2 + 2 * network.first / (n * p_bar * network.steps)
    spread = network.variance / rho_bar + gradients / rho_bar**2
    caps = (1 / 24, rho_bar / (16 * math.sqrt(p_max)), math.sqrt(p_min / p_bar) / 4)
    linear = 4 * beta * (network.variance + 2 * zeta2) / n
    quadratic, cap = 16 * beta**2 * p_max * spread, min(caps) / beta
    return Tradeoff(4 * start / p_bar, linear, quadratic, cap, network.steps)


def statistical_regime(
    clients: int, rho_bar: float, longest: float
) -> dict[str, float]:
    """Numbers of gradients after which delays and graph have no effect; Table 5.1.

    Keys are papers and theorems. Numbers hold up to constants; `crossover` has our
    constants.
    """
    slow = clients / rho_bar
    return {
        "Lian 2015": max(slow**4, longest**4),
        "Bornstein 2023": math.inf,
        "Theorem 5.2": clients**2 * slow**2,
        "Theorem 5.4.1": max(clients**2 * slow**2, clients * longest),
        "Theorem 5.4.2": slow**2 / rho_bar**2,
    }


# Quantities of the proofs.


def virtual_mean(
    x: Float[Tensor, "n d"], open_gradients: Float[Tensor, "n d"], lr: float
) -> Float[Tensor, " d"]:
    """`x_hat^k = x_bar^k - (gamma / n) sum_v G_v`, where G_v is v's open gradient.

    A gradient is open from its start until it is applied. When a gradient starts, x_hat
    moves by -gamma / n times this gradient.
    """
    return x.mean(0) - lr * open_gradients.mean(0)


def virtual_radius(radius: float, bound: float, lr: float) -> float:
    """`D + gamma B`: a bound on |x_hat^k - x^*| if |x_bar^k - x^*| <= D; (5.10)."""
    return radius + lr * bound


def virtual_spread(gradients: Float[Tensor, " n"], variance: float, lr: float) -> float:
    """`2 gamma^2 (sigma^2 + sum_v |grad f_v|^2) / n` bounds E |x_hat - x_bar|^2.

    Lemma 5.B.1, (5.11).

    Args:
        gradients: |grad f_v|^2 at the model at which v takes its gradient.
        variance: sigma^2.
        lr: gamma.
    """
    return 2 * lr**2 / len(gradients) * (variance + float(gradients.sum()))


def consensus_bound(bound: float, lr: float, network: EqualNodes) -> float:
    """`2 gamma^2 B^2 N / rho_bar^2` bounds sum_k E |x^k - x_bar^k|^2; (5.14)."""
    return 2 * (lr * bound / network.rho_bar) ** 2 * network.gradients


def smooth_consensus_bound(gradients: float, lr: float, network: EqualNodes) -> float:
    """A bound on sum_k E |x^k - x_bar^k|^2 from the gradients that are applied; (5.12).

    `2 gamma^2 sigma^2 N / rho_bar + (4 gamma^2 / rho_bar^2) sum_k sum_{v in I_k}
    |grad f_v(x_v^{s(k,v)})|^2`.
    """
    noise = 2 * lr**2 * network.variance * network.gradients / network.rho_bar
    return noise + 4 * (lr / network.rho_bar) ** 2 * gradients


def sampled_consensus_bound(
    gradients: float, lr: float, network: SampledNodes
) -> float:
    """A bound on sum_k E |x^k - x_bar^k|^2 from |grad f(x_bar^k)|^2; Lemma 5.E.1.

    `4 gamma^2 sigma^2 n p_bar K / rho_bar + (8 gamma^2 / rho_bar^2) G_0
    + (16 gamma^2 n p_bar / rho_bar^2)(sum_k |grad f(x_bar^k)|^2 + K zeta^2)` for
    `gamma <= rho_bar / (4 L sqrt(p_max))`.
    """
    n, (_, p_bar, p_max) = len(network.probabilities), network.shares
    rho_bar = network.rho_bar
    cap = rho_bar / (4 * network.beta * math.sqrt(p_max))
    checks.number("lr", lr, above=0.0, at_most=cap * (1 + 1e-12))
    noise = 4 * lr**2 * network.variance * n * p_bar * network.steps / rho_bar
    drift = gradients + network.steps * network.zeta**2
    return noise + (lr / rho_bar) ** 2 * (8 * network.first + 16 * n * p_bar * drift)

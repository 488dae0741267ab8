"""All-for-all in phases: as models become more precise, fewer clients help.

    eps_p = start 2^-p,   lambda_ik = 1{2 b_ik <= eps_p} / N_i,   W = Lambda Lambda^T
    x <- x - eta_p W g(x),   K_p times;   then p <- p + 1

At the beginning, when errors are large, even very different clients help. Later, only
similar clients help. N_i is the number of clients k with 2 b_ik <= eps_p. With Sigma =
mean_i 1 / N_i and the spectral radius rho = rho(W), the step and the length of a phase
are

    eta_p = (lr / rho) min(1, mu eps_p / (noise Sigma)),
    K_p = min(p, 3) ln 2 / (eta_p mu)                    for strongly convex losses,
    eta_p = min(lr / rho, eps_p / (2 noise Sigma)),
    K_p = 4 diameter^2 noise Sigma / eps_p^2             for convex ones.

K_p is rounded up. A phase that continues begins at twice its target error. If every
phase restarts, it must go from `start` to eps_p, so K_p = p ln 2 / (eta_p mu). For
strongly convex losses, phase 0 has no steps, because models begin with the target error
of this phase.

References:
    Even, Massoulié, Scaman, "Sample optimality and all-for-all strategies in
    personalized federated and collaborative learning", report hal-03550407, 2022,
    Algorithm 2 and Proposition 3.

Differences: the convex step that Proposition 3 prints lacks a square root, and a factor
sqrt(2) that the proof needs. Dividing by rho is our addition, as in `all_for_all`. We
count the length of a phase in gradients per client. So with one active client at a time
(the report's asynchronous oracle), a phase takes N times as many steps.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..checks import InputError
from ..collaboration.weights import spectral_radius, threshold_weights
from ..graphs.matrices import among_present
from ..options import Count, NotNegative, Positive, Weights, method
from ..types import Algorithm, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """Models, the phase, and the number of gradients in it."""

    x: Rows  # (n, D)
    phase: int
    gradients: int  # of all clients together
    start: Rows  # (n, D) to restart from, or (n, 0)


class Phase(NamedTuple):
    """The weights, step size and length of a phase."""

    weights: Tensor  # (N, N) Lambda
    product: Tensor  # (N, N) W
    radius: float  # rho(W)
    eps: float
    lr: float
    calls: int  # gradients of each client


@method()
def time_adaptive_all_for_all(
    biases: Weights,
    *,
    lr: Positive = 0.1,
    steps: Count = 1,
    mu: Positive = 1.0,
    noise: NotNegative = 1.0,
    start: Positive = 1.0,
    diameter: Positive = 1.0,
    regularity: Literal["strongly_convex", "convex"] = "strongly_convex",
    phase_init: Literal["continue", "mix", "restart"] = "continue",
) -> Algorithm:
    """Time-adaptive All-for-all, in which fewer clients help from phase to phase.

    Only active clients compute, but their gradients also move the models of inactive
    clients. A newcomer gets the model that fits its training data best.

    Args:
        biases: (N, N) b_ik, at least f_i(x_k^*) - f_i(x_i^*).
        lr: the largest step size, for example 1 / (2 beta).
        steps: gradients of every client in one round; messages follow each of them.
        mu: strong convexity of the losses.
        noise: variance of a gradient; for convex losses its mean squared norm.
        start: mean excess loss at the beginning, the target error of phase 0.
        diameter: distance from the start to the optima; for convex losses only.
        regularity: `strongly_convex` or `convex`.
        phase_init: where a phase begins: at the current models x (`continue`, as in the
            report), at Lambda x (`mix`), or at Lambda x^0 of the first models
            (`restart`).
    """
    if regularity == "convex" and not noise:
        raise InputError(
            f"`noise` must be greater than 0 if `regularity` is convex, got {noise}."
        )

    @functools.lru_cache(maxsize=1)
    def plan(p: int) -> Phase:
        eps = start * 0.5**p
        lam = threshold_weights(2 * biases.double(), eps)
        rho = spectral_radius(lam)
        variance = noise * float(lam.square().sum()) / len(lam)
        if regularity == "convex":
            step = min(lr / rho, eps / (2 * variance))
            calls = 4 * diameter**2 * variance / eps**2
        else:
            step = lr / rho * (min(1.0, mu * eps / variance) if variance else 1.0)
            # A phase that continues begins at twice its target error.
            halvings = p if phase_init == "restart" else min(p, 3)
            calls = halvings * math.log(2) / (step * mu)
        return Phase(lam, lam @ lam.T, rho, eps, step, math.ceil(calls))

    def init(x: Tensor, oracle: Oracle) -> State:
        keep = x if phase_init == "restart" else x[:, :0]
        p = 0 if plan(0).calls else 1  # all later phases have steps
        return State(oracle.mix(plan(p).weights, x), p, 0, keep)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, p, count, first = state
        for _ in range(steps):
            if count >= plan(p).calls * len(oracle.present):
                p, count = p + 1, 0
                if phase_init != "continue":
                    start = first if phase_init == "restart" else x
                    w = among_present(plan(p).weights, oracle.present)
                    x = oracle.mix(w, start)
            now = plan(p)
            w = now.product.to(x)
            x = x.sub(oracle.mix(w, oracle.grads(x)), alpha=now.lr)
            count += int(oracle.present.sum())
        info: Info = {"weights": now.weights, "eps": now.eps}
        return State(x, p, count, first), info | {"spectral_radius": now.radius}

    return Algorithm(init, step, releases=Releases(mix=steps))

"""Decentralised SGD: local steps, then averaging with neighbours, round by round.

    x <- W (x - lr g),    g_v = g_v(x_v)                                          (1.11)

where W is `mixing`, doubly stochastic and sparse. A round may have several local steps,
and m `exchanges`, which multiply by W^m. With Chebyshev's recursion (`accelerated`), m
exchanges are as good as about m^2 exchanges without it. With W = 11'/n, the method is
minibatch SGD, or FedAvg if there are several local steps.

If data differ and the step size is constant, models never become equal, and their mean
stays away from the optimum, at a distance of the order of lr. `gradient_tracking` and
`extra` reach the optimum.

References:
    Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can decentralized algorithms outperform
    centralized algorithms?", NeurIPS 2017, arXiv 1705.09056.
    Koloskova, Loizou, Boreiri, Jaggi, Stich, "A unified theory of decentralized SGD
    with changing topology and local updates", ICML 2020, arXiv 2003.10422.

Differences: with momentum, every node keeps its buffer between rounds. An inactive node
keeps its model. Each of its neighbours adds the missing weight to the weight of its own
model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import InputError
from ..graphs.matrices import DoublyStochastic, among_present, symmetric
from ..graphs.spectra import chebyshev_factor, spectral_gap
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, method
from ..types import Algorithm, Info, Oracle, Releases
from .local import State


@method()
def decentralised_sgd(
    mixing: DoublyStochastic,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    exchanges: Count = 1,
    accelerated: bool = False,
) -> Algorithm:
    """Decentralised SGD: local steps, then averaging with neighbours.

    Args:
        mixing: (N, N) doubly stochastic, sparse or dense.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        exchanges: how often models are mixed after these steps.
        accelerated: whether to use Chebyshev's recursion; `mixing` must be symmetric.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    omega, n = 1.0, float(len(mixing))
    if accelerated:
        if exchanges == 1:
            raise InputError("`accelerated` needs `exchanges` of at least 2, got 1.")
        omega = chebyshev_factor(spectral_gap(symmetric("mixing", mixing, len(mixing))))

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, rule=rule, together=n)
        w = among_present(mixing, oracle.present)
        x = oracle.mix(w, x, exchanges=exchanges, gamma=omega)
        return State(x, v, t + steps), {"weights": w}

    return Algorithm(init, step, releases=Releases(mix=1))

"""FedAvg in which batch normalisation stays at home: scales, shifts and statistics.

    x_i <- (w, b_i), then `steps` times  x_i <- x_i - lr g_i(x_i)    all columns
    b_i <- the normalisation of x_i,    w <- sum_i p_i (all other columns of x_i)

over the clients of the round. b_i never leaves its client. Running statistics do not
follow gradients: they move towards those of the minibatch by the momentum of their
layer. The method equals `fedavg` with the normalisation in `model.personal`.

References:
    Li, Jiang, Zhang, Kamp, Dou, "FedBN: federated learning on non-IID features via
    local batch normalization", ICLR 2021, arXiv 2102.07623.

Differences: clients are weighted by their samples; the paper takes equal weights. Work
is counted in gradient steps. A round may have only some of the clients. With momentum,
every client keeps its buffer.
"""

from __future__ import annotations

from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule
from ..options import BelowOne, Count, Head, Sizes, method
from ..types import Algorithm
from .fedper import average_without


@method()
def fedbn(
    sizes: Sizes,
    norm: Head,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
) -> Algorithm:
    """FedBN: an average model with a personal batch normalisation.

    A newcomer trains only its normalisation, with as many steps as the other clients
    took.

    Args:
        sizes: (N,) training samples of each client.
        norm: (D,) which columns are the normalisation.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: factor of the model in its gradient; also `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    return average_without(sizes, norm, rule, steps=steps, weighting=weighting)

"""FedAvg of the head; every client also trains its own body, which it never sends.

    x_i <- (b_i, h), then `steps` times  x_i <- x_i - lr g_i(x_i)    body and head
    b_i <- the body of x_i,    h <- sum_i p_i (the head of x_i)

The sum runs over the clients of the round. Bodies never leave their clients. The method
equals `fedavg` with the body in `model.personal`.

References:
    Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think locally,
    act globally: federated learning with local and global representations", 2020,
    arXiv 2001.01523.

Differences: a body learns only from its client's labels, as in most of the paper's
experiments. We left out the paper's auxiliary losses (self-supervised, adversarial).
The authors' code can start from a global model that FedAvg has trained. Work is counted
in gradient steps. With momentum, every client keeps its buffer.
"""

from __future__ import annotations

from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule
from ..options import BelowOne, Count, Head, Sizes, method
from ..types import Algorithm
from .fedper import average_without


@method()
def lg_fedavg(
    sizes: Sizes,
    head: Head,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
) -> Algorithm:
    """LG-FedAvg: an average head and personal bodies, trained together.

    A newcomer trains a body for the fixed head, with as many steps as the other clients
    took.

    Args:
        sizes: (N,) training samples of each client.
        head: (D,) which columns are the head.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    return average_without(sizes, ~head, rule, steps=steps, weighting=weighting)

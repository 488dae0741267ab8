"""Decentralised SGD: own steps, then a mixture with neighbours, round by round.

    x <- W (x - lr g),    g_v = g_v(x_v)                                          (1.11)

where W is `mixing`, doubly stochastic and sparse; or several own steps before each
mixture. W = 11'/n is minibatch SGD, and FedAvg where there are several own steps.
Where data differ, a constant step leaves models apart and their mean beside the
optimum, by the order of lr; see `gradient_tracking` and `extra`.

References:
    Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can decentralized algorithms outperform
    centralized algorithms?", NeurIPS 2017, arXiv 1705.09056.
    Koloskova, Loizou, Boreiri, Jaggi, Stich, "A unified theory of decentralized SGD
    with changing topology and local updates", ICML 2020, arXiv 2003.10422.

Differences: with momentum, every node keeps its buffer between rounds. A node that
takes no part keeps its model, and its neighbours keep for themselves what was for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..graphs.families import refuse_apart
from ..graphs.matrices import among_present, joined
from ..optim.steps import Descent, sgd, velocity
from ..options import Count, DoublyStochastic, method
from ..types import Algorithm, Info, Oracle
from .local import State


@method()
def decentralised_sgd(
    mixing: DoublyStochastic, *, rule: Descent = Descent(), steps: Count = 1
) -> Algorithm:
    """Decentralised SGD: own steps, then a mixture with the models of neighbours.

    Args:
        mixing: (N, N) doubly stochastic, sparse or dense.
        rule: of the own steps.
        steps: own gradient steps in one round.
    """
    refuse_apart("mixing", joined(mixing), len(mixing))

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, rule=rule)
        w = among_present(mixing, oracle.present)
        return State(oracle.mix(w, x), v, t + steps), {"weights": w}

    return Algorithm(init, step)

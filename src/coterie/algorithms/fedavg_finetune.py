"""FedAvg, then a few local steps before use.

    train w as FedAvg does;   x_i <- w, then `tune_steps` times x_i <- x_i - lr g_i(x_i)

on client i's own training data. Tuning is no part of training: it starts from the
current w whenever the models are used.

References:
    Yu, Bagdasaryan, Shmatikov, "Salvaging federated learning by local adaptation",
    2020, arXiv 2002.04758.
"""

from __future__ import annotations

from torch import Tensor

from ..checks import integer, number
from ..optim.steps import descent, sgd, velocity
from ..types import Algorithm, Oracle
from .fedavg import fedavg
from .local import State


def fedavg_finetune(
    sizes: Tensor,
    *,
    lr: float = 0.1,
    steps: int = 1,
    weighting: str = "samples",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
    tune_steps: int = 10,
    tune_lr: float = 0.1,
) -> Algorithm:
    """FedAvg with a few local steps of every client before the model is used.

    A newcomer tunes the global model with its own data as everybody does.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of FedAvg.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
        momentum: of the local steps.
        weight_decay: of the local steps and of tuning.
        schedule: of FedAvg's step size, see `coterie.optim.steps`.
        tune_steps: gradient steps before use.
        tune_lr: their step size.
    """
    integer("tune_steps", tune_steps, at_least=0)
    number("tune_lr", tune_lr, above=0)
    tuning = descent(
        lr=tune_lr, momentum=0.0, weight_decay=weight_decay, schedule="constant"
    )
    average = fedavg(
        sizes,
        lr=lr,
        steps=steps,
        weighting=weighting,
        momentum=momentum,
        weight_decay=weight_decay,
        schedule=schedule,
    )

    def tuned(x: Tensor, oracle: Oracle) -> Tensor:
        v = velocity(tuning, x)
        return oracle.each(sgd, x, v, steps=tune_steps, t=0, **tuning._asdict())[0]

    def personal(state: State, oracle: Oracle) -> Tensor:
        return tuned(state.x, oracle)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return tuned(state.x[0].repeat(len(oracle.active), 1), oracle)

    return Algorithm(average.init, average.step, personal, welcome)

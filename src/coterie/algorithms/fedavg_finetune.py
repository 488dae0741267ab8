"""FedAvg, then a few local steps before use.

    train w as FedAvg does;   x_i <- w, then `tune_steps` times x_i <- x_i - lr g_i(x_i)

on client i's own training data. Tuning is not part of training. It starts from the
current w whenever models are used.

References:
    Yu, Bagdasaryan, Shmatikov, "Salvaging federated learning by local adaptation",
    2020, arXiv 2002.04758.
"""

from __future__ import annotations

from torch import Tensor

from ..collaboration.rows import row_for_each
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    refuse_idle_options,
    train_alone,
)
from ..options import BelowOne, Count, Sizes, Whole, method
from ..types import Algorithm, Oracle, Releases
from .fedavg import State, fedavg


@method()
def fedavg_finetune(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
    tune_steps: Whole = 10,
    tune_lr: LocalLr = 0.1,
) -> Algorithm:
    """FedAvg with a few local steps of every client before the model is used.

    A newcomer tunes the global model on its own data, as all clients do.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of the local steps of FedAvg; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient, also in
            tuning; also `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
        tune_steps: gradient steps before use.
        tune_lr: step size of tuning.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    tuning = refuse_idle_options(LocalDescent(tune_lr, weight_decay=rule.weight_decay))
    average = fedavg(sizes, steps=steps, weighting=weighting, **rule._asdict())

    def personal(state: State, oracle: Oracle) -> Tensor:
        return train_alone(oracle, state.x, tuning, tune_steps)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return train_alone(oracle, row_for_each(oracle, state.x), tuning, tune_steps)

    return Algorithm(
        average.init,
        average.step,
        personal,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.x,
    )

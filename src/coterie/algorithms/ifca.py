"""C cluster models; every client trains the one that fits its training data best.

    c_i <- argmin_c f_i(w_c)                  with f_i on all of its training data
    x_i <- w_{c_i}, then `steps` times  x_i <- x_i - lr g_i(x_i)
    w_c <- sum_{i: c_i = c} p_i x_i           unchanged if nobody chose c

Each sum runs over the clients of the round that chose c. Their p_i are in proportion to
sample sizes or uniform. One cluster is FedAvg. The models must differ at the start:

    w_c = w (1 + spread (noise_c - mean_c noise_c)),    w = the mean of the clients' x

entry by entry, so that every layer keeps its scale. If w is zero, w_c is `spread` times
the noise. From `starts` such draws, the first round keeps the one in which the choice
matters most. For this draw, min_c mean_i f_i(w_c) - mean_i min_c f_i(w_c) is largest.

References:
    Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated
    learning", NeurIPS 2020, arXiv 2006.04088.

Differences: the paper trains from each of several random initialisations. We compare
random starts by their losses before training, so that the clients do not all choose the
same model for ever. Clients choose their final model by training loss; the authors'
code chooses by the loss on test data. With momentum, a client keeps its buffer until it
changes its cluster.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..collaboration.best_fit import best_fit, training_losses
from ..collaboration.rows import compute_once, mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, Positive, Sizes, method
from ..types import (
    ALONE,
    Algorithm,
    Info,
    Numbers,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
)


class State(NamedTuple):
    """Cluster models, the clients' choices, momentum, and the number of steps."""

    w: SameRow  # (n, C, D)
    choice: OwnRows  # (n,) whole numbers, ALONE for clients that never took part
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


@method()
def ifca(
    sizes: Sizes,
    *,
    clusters: Count = 2,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    spread: Positive = 0.1,
    starts: Count = 10,
    weighting: str = "samples",
) -> Algorithm:
    """IFCA: cluster models, each averaged over the clients that it fits best.

    A newcomer gets the cluster model that fits its training data best.

    Args:
        sizes: (N,) training samples of each client.
        clusters: the number of models.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        spread: how much the models differ at the start, relative to their entries.
        starts: the number of random starts; the first round keeps the best one.
        weighting: `samples` or `uniform` weights of the averages.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        w = mean_of_all(oracle, x)[:, None].expand(-1, clusters, -1)
        nobody = torch.full((len(x),), ALONE, device=x.device)
        return State(w, nobody, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, choice, v, t = state
        if t == 0 and clusters > 1:
            draws = [_perturb(w, spread, rng) for _ in range(starts)]
            w = max(draws, key=lambda draw: _gain(oracle, draw))
        # With one model there is no choice, and the minibatches are FedAvg's.
        best = best_fit(oracle, w) if clusters > 1 else torch.zeros_like(choice)
        chosen = torch.where(oracle.active, best, choice)
        # A buffer belongs to the model with which it was filled.
        v = torch.where((chosen == choice)[:, None], v, 0)
        x = _chosen_models(w, chosen)
        # `together` is the average number of clients of a model.
        work: Options = {"steps": steps, "t": t, "together": len(sizes) / clusters}
        x, v = oracle.each(sgd, x, v, rule=rule, **work)
        member = chosen == torch.arange(clusters, device=x.device)[:, None]  # (C, n)
        mean = oracle.average(member * shares.to(x)[oracle.mine], x)
        chose = mean_of_all(oracle, Numbers(member.T.to(x)))  # (n, C)
        w = compute_once(_update_models, w, mean, chose)
        new, used = State(w, chosen, v, t + steps), float(chose[0].count_nonzero())
        return new, {**info(new), "clusters": used}

    def info(state: State) -> Info:
        return {"member": state.choice}

    def personal(state: State, oracle: Oracle) -> Tensor:
        if clusters == 1:
            return state.w[:, 0]
        # Other clients may have changed the models since a client made its choice.
        best = best_fit(oracle, state.w)
        return _chosen_models(state.w, torch.where(oracle.active, best, state.choice))

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        return _chosen_models(w, best_fit(oracle, w))

    return Algorithm(
        init,
        step,
        personal,
        welcome,
        releases=Releases(average=1, losses=True),
        info=info,
    )


def _chosen_models(
    w: Float[Tensor, "n c d"], choice: Int[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """The model that each client chose; the first if it never chose."""
    return w[torch.arange(len(w), device=w.device), choice.clamp(min=0)]


def _update_models(w: Tensor, mean: Tensor, chose: Tensor) -> Tensor:
    """The new cluster models; a model that nobody chose stays as it was."""
    return torch.where((chose > 0)[:, :, None], mean, w)


def _perturb(
    w: Float[Tensor, "n c d"], spread: float, rng: torch.Generator
) -> Float[Tensor, "n c d"]:
    """The models with noise that has mean 0 over models, the same for all clients."""
    noise = torch.randn(w.shape[1:], generator=rng, dtype=w.dtype, device=rng.device)
    noise = (noise - noise.mean(0)).to(w.device)
    return compute_once(lambda w: w + spread * noise * (w if bool(w.any()) else 1), w)


def _gain(oracle: Oracle, w: Float[Tensor, "n c d"]) -> float:
    """The mean loss of the best single model minus that of each client's best model."""
    losses = training_losses(oracle, w).nan_to_num()  # NaN for inactive clients
    single = mean_of_all(oracle, Numbers(losses))[0].min()
    chosen = mean_of_all(oracle, Numbers(losses.amin(1, keepdim=True)))[0]
    return float(single - chosen)

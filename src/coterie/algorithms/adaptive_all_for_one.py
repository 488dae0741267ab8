"""All-for-one with weights that are estimated during training.

    x_i <- x_i - lr sum_k alpha_ik g_k(x_i),
    alpha_ik = phi(r_ik) (sigma_{i,psi} / sigma_k)^2

where r_ik = (1 - |grad R_k(x_i) - grad R_i(x_i)|^2 / |grad R_i(x_i)|^2)_+ is estimated
every `every` steps. There are two estimators of the squared norms in r_ik:

- `plain` is the paper's equation (1): norms of gradients on all samples. Gradient noise
  makes both norms too large. So near convergence even a client with the same
  distribution looks different, and clients stop learning from each other too early.

- `split` (default, ours): inner products of the gradients of two random halves of the
  data, <a_i - a_k, b_i - b_k> and <a_i, b_i>. Noise does not bias these products. Near
  convergence, the data of one client are not enough to see small differences. So these
  products are averaged over time with factor `memory`, and a new ratio replaces the old
  one only if the two differ by more than `confidence` standard errors.

On a graph, clients are compared with their neighbours and learn only from them.
Without waiting, each client serves its readers in turn (`readers_in_turn`).

References:
    Philippenko, Le Bars, Scaman, Massoulié, "Adaptive collaboration for online
    personalized distributed learning with heterogeneous clients", NeurIPS 2025.

Differences: partial participation is ours (`restrict_to_active` in
`coterie.collaboration.weights`). `rule="normalised"` divides rows of weights by their
sums, as in the authors' code. The paper does not divide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from ..checks import InputError, integer
from ..collaboration.beliefs import Belief, Trust, no_belief
from ..collaboration.best_fit import mean_of_partners
from ..collaboration.weights import (
    effective_variance,
    noise_variance,
    restrict_to_active,
)
from ..graphs.matrices import adjacency
from ..optim.delays import Late
from ..optim.steps import Descent, Schedule, follow, velocity
from ..options import (
    BelowOne,
    Count,
    GraphOrNone,
    NotNegative,
    Positive,
    SizesOrNone,
    method,
)
from ..types import Algorithm, Info, Options, Oracle, Releases, Rows
from .readers_in_turn import readers_in_turn


def _in_halves(name: str, samples: int) -> None:
    if integer(name, samples, at_least=0) == 1:
        raise InputError(f"`{name}` must be 0 (all) or at least 2, got 1.")


HalvedSamples = Annotated[int, _in_halves]


class State(NamedTuple):
    """Models, momentum, the number of steps, and what clients believe about others."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    t: int
    belief: Belief


@method(in_rounds=("steps", "momentum", "weight_decay", "schedule"), in_time=("late",))
def adaptive_all_for_one(
    precision: SizesOrNone,
    graph: GraphOrNone = None,
    *,
    lr: Positive = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    every: Count = 20,
    samples: HalvedSamples = 0,
    estimator: Literal["split", "plain"] = "split",
    memory: BelowOne = 0.8,
    confidence: NotNegative = 0.5,
    criterion: str | Callable[[Tensor], Tensor] = "binary",
    lam: float = 0.1,
    rule: Literal["paper", "normalised"] = "paper",
    against: Literal["gradient", "noise"] = "gradient",
    late: Late = "constant",
) -> Algorithm:
    """Adaptive All-for-one, which finds out during training who helps whom.

    For a newcomer, the method finds the client whose model has the lowest loss on the
    newcomer's training data. The newcomer gets the mean of all models with that
    client's weights.

    Args:
        precision: (N,) sigma_k^-2 up to a factor, for example sample sizes; None
            estimates it from the comparisons.
        graph: (N, N) only clients with an entry that is not 0 learn from each other;
            None: all clients may.
        lr: step size.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: gradient steps in one round.
        every: gradient steps between two comparisons.
        samples: the number of training samples that each client uses in a comparison;
            0: all.
        estimator: `split` (unbiased) or `plain` (the paper's).
        memory: weight of past comparisons in averages; 0 uses only the latest
            comparison.
        confidence: a new ratio replaces the old one only if the two differ by more than
            this number of standard errors.
        criterion: phi: `binary`, `continuous`, or a function on tensors.
        lam: threshold of the binary criterion.
        rule: weights as in the `paper`, or `normalised` rows, which sum to 1.
        against: the quantity with which squared distances are compared. `gradient`: the
            squared norm of the gradient, as in the paper. `noise`: the variance of the
            gradient over all samples of the client.
        late: `constant`, or `adaptive` to the delay of a gradient.
    """
    move = Descent(lr, momentum, weight_decay, schedule)
    trust = Trust(estimator, memory, confidence, criterion, lam, rule, against)
    phi = trust.phi()
    near = None if graph is None else adjacency(graph)

    def weigh(belief: Belief, active: Tensor) -> tuple[Tensor, Info]:
        alpha, s = trust.weights(belief, precision, phi)  # newcomers come last
        alpha = restrict_to_active(alpha, active)
        # Both variances are relative to the variance of a client that trains alone.
        return alpha, {
            "effective_variance": effective_variance(belief.ratio, s, phi) * s,
            "noise_variance": noise_variance(alpha, s) * s,
        }

    def init(x: Tensor, oracle: Oracle) -> State:
        nothing = no_belief(x.new_empty(len(oracle.present), 0))
        return State(x, velocity(move, x), 0, nothing)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t, belief = state
        for t_now in range(t, t + steps):
            if t_now % every == 0:
                seen = oracle.compare(x, samples=samples or None, pairs=near)
                belief = trust.learn(belief, seen)
            if t_now % every == 0 or t_now == t:
                alpha, variances = weigh(belief, oracle.present)
            x, v = follow(oracle, alpha, move, x, v, steps=1, t=t_now)
        return State(x, v, t + steps, belief), {"weights": alpha, **variances}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        everybody = torch.ones(len(state.x), dtype=torch.bool, device=state.x.device)
        alpha, _ = weigh(state.belief, everybody)
        return mean_of_partners(oracle, state.x, alpha)

    given: Options = {"lr": move.lr, "every": every, "samples": samples, "late": late}
    flow = readers_in_turn(precision, near, trust, phi, **given)
    sent = Releases(blended=steps, compare=1)
    return Algorithm(init, step, welcome=welcome, flow=flow, releases=sent)

"""A global model by FedAvg, and for every client a personal model near it.

    w_i <- w, then `steps` times  w_i <- w_i - lr g_i(w_i)
              and `steps` times  v_i <- v_i - lr (g_i(v_i) + lam (v_i - w))
    w <- sum_i p_i w_i

The sum runs over the clients of the round. v_i is pulled to the w that the client
received at the start of the round. Personal models are v. `lam=0` is local training.

Without waiting, a client begins with the current w. When it has finished its steps,

    w <- w + c p_i (w_i - the w it began with),

where c is the factor for late gradients. This is FedAvg's global model, changed by one
client at a time.

References:
    Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through
    personalization", ICML 2021, arXiv 2012.04221. The version without waiting is ours.

Differences: the steps of w_i and of v_i use different minibatches; the authors' code
uses the same for both. `lam` is given, not chosen by each client on validation data.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.rows import mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim import delays
from ..optim.delays import Late
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    proximal_sgd,
    sgd,
    velocity,
)
from ..options import BelowOne, Count, NotNegative, Sizes, method
from ..types import (
    Algorithm,
    Arrivals,
    Clients,
    Flow,
    Info,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
    Task,
    TaskKind,
)


class State(NamedTuple):
    """The global model, the personal models, and the number of gradient steps."""

    w: SameRow  # (n, D)
    v: OwnRows  # (n, D)
    w_velocity: OwnRows  # (n, D), or (n, 0) without momentum
    v_velocity: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


def ditto_round(
    clients: Clients,
    w: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    w_velocity: Float[Tensor, "n v"],
    v_velocity: Float[Tensor, "n v"],
    *,
    rule: LocalDescent,
    lam: float,
    steps: int,
    t: int,
    together: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A client program: local steps from the global model, and as many personal steps.

    The two kinds of steps do not need each other's results, so their order does not
    matter.
    """
    work: Options = {"rule": rule, "steps": steps, "t": t, "together": together}
    w_i, w_velocity = sgd(clients, w, w_velocity, **work)
    # The pull to the global model makes a personal model use the samples of all
    # clients.
    v, v_velocity = proximal_sgd(clients, v, v_velocity, w, lam=lam, **work)
    return w_i, v, w_velocity, v_velocity


@method(in_rounds=("momentum", "schedule"), in_time=("late",))
def ditto(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    lam: NotNegative = 1.0,
    weighting: str = "samples",
    late: Late = "constant",
) -> Algorithm:
    """Ditto: personal models that are pulled to a global model.

    A newcomer starts at the global model, and takes as many personal steps as the other
    clients took. The global model stays fixed.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of global and personal steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round, for each of the two models.
        lam: strength of the pull to the global model.
        weighting: `samples` or `uniform` weights of the average.
        late: `constant`, `adaptive` to the delay of an answer, or `heterogeneous`.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    options: Options = {"rule": rule, "lam": lam, "together": float(len(sizes))}

    def init(x: Tensor, oracle: Oracle) -> State:
        w = mean_of_all(oracle, x)
        return State(w, x, velocity(rule, x), velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, v, w_velocity, v_velocity, t = state
        rows = w, v, w_velocity, v_velocity
        w_i, v, w_velocity, v_velocity = oracle.each(
            ditto_round, *rows, steps=steps, t=t, **options
        )
        w = oracle.average(shares[oracle.mine], w_i)
        return State(w, v, w_velocity, v_velocity, t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        rows = w, velocity(rule, w), w
        return oracle.each(proximal_sgd, *rows, steps=state.t, t=0, **options)[0]

    flow = _flow(shares, rule, steps, lam, late)
    made = Algorithm(init, step, lambda state, oracle: state.v, welcome, flow)
    return made._replace(releases=Releases(average=1), shared=lambda state: state.w)


@dataclass
class FlowState:
    """The global model, the one that each client began with, and personal models."""

    w: Tensor  # (D,)
    began: Tensor  # (N, D)
    v: Tensor  # (N, D)
    none: Tensor  # (0,) in place of momentum


def _flow(
    shares: Tensor, rule: LocalDescent, steps: int, lam: float, late: str
) -> Flow:
    """Ditto for clients that work at their own pace."""
    shares = shares.double() / shares.double().sum()

    def init(x: Tensor) -> FlowState:
        w = x.mean(0)
        return FlowState(w, w.repeat(len(x), 1), x.clone(), x.new_zeros(0))

    def task(state: FlowState, client: int, time: float) -> Task:
        state.began[client] = state.w
        rows = (state.w, state.v[client], state.none, state.none)
        return Task(rows, work=2 * steps)

    def arrive(state: FlowState, now: Arrivals) -> list[int]:
        w_i, v_i = now.answers[:2]
        c = [delays.factor(late, len(state.v), tau) for tau in now.delays]
        share = (shares[now.clients] * torch.tensor(c, dtype=torch.float64)).to(w_i)
        state.w.add_(share @ (w_i - state.began[now.clients]))
        state.v[now.clients] = v_i
        return now.clients

    program = functools.partial(ditto_round, rule=rule, lam=lam, steps=steps, t=0)
    # Only the global model travels.
    kind = TaskKind(program, "each", down=(0,), up=(0,))
    return Flow(init, task, arrive, lambda state: state.v, kinds=(kind,), together=True)

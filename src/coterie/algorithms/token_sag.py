"""SAG of one model that walks as a token, with the last gradients of all clients.

At client v, where the token is at step t with the model x and the mean h_bar,

    g = g_v(x_t),   h_bar <- h_bar + (g - h_v) / n,   x_{t+1} = x_t - gamma_t h_bar,
    h_v <- g,       v_{t+1} ~ P_v                                    (Algorithm 7.1)

Then the token goes on to v_{t+1} with x and h_bar. Client v keeps h_v, which is 0
before the first visit. So h_bar is always the mean of the last gradients of all
clients, however often the walk visits each client. Step sizes are

    gamma_t = lr                                                (step `constant`)
    gamma_t = lr / (tau_hit + max_v (t - d_v(t)))               (step `exact`)     (7.7)

where d_v(t) is the step of the last visit to v, and 0 before the first visit. tau_hit
is the hitting time of the walk. Theorem 7.6 has lr = 1 / (4 L) for L-smooth losses.
With step `epoch`, the token carries four numbers that bound the delay, instead of one
number for each client.

References:
    Even, "Stochastic gradient descent under Markovian sampling schemes", ICML 2023,
    arXiv 2302.14428.

Differences (each with a test; see docs/errata.md): the update of x uses h_bar. With the
printed recursion, the delay never decreases; we compute it from all last visits or from
epochs. The step is 1 / (4 L), because h_v begins at 0 and not at the first gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..graphs.chains import hitting_time_of
from ..graphs.matrices import Mixing, linked_pairs
from ..graphs.walks import Token, Visits, WalkKind, oldest, oldest_by_epochs, walk_on
from ..options import Positive, method
from ..types import Algorithm, Arrivals, Flow, Task, TaskKind


@dataclass
class State:
    """The token, with the mean of all gradients that clients remember."""

    x: Tensor  # (D,)
    mean: Tensor  # (D,) h_bar
    kept: Tensor  # (N, D) h; each client keeps its own row
    token: Token
    visits: Visits


@method()
def token_sag(
    mixing: Mixing,
    *,
    lr: Positive = 0.1,
    step: Literal["exact", "epoch", "constant"] = "exact",
    walk: WalkKind = "metropolis",
) -> Algorithm:
    """SAG of one model that walks on a graph, also known as MC-SAG.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            clients neighbours.
        lr: step size; `exact` and `epoch` divide it by the sum of tau_hit and delay.
        step: `exact` uses the delay, `epoch` a bound on the delay, `constant` neither.
        walk: how the token moves: `metropolis`, `simple`, `lazy`, `non_backtracking`,
            `cyclic`, `reshuffled` or `iid`.
    """
    n = len(mixing)
    way = walk_on(walk, linked_pairs(mixing), n)
    slowest = 0.0 if step == "constant" else hitting_time_of(way)

    def init(x: Tensor) -> State:
        start = x.mean(0)
        none = start.new_zeros(n, len(start))
        return State(start, none[0].clone(), none, way.token(), Visits([0] * n))

    def task(state: State, client: int, time: float) -> Task:
        return Task((state.x, state.mean), peer=state.token.came)

    def gamma(state: State) -> float:
        if step == "constant":
            return lr
        since = oldest if step == "exact" else oldest_by_epochs
        return lr / (slowest + since(state.visits, state.token.at, state.token.t))

    def arrive(state: State, now: Arrivals) -> list[int]:
        g, v = now.answers[0][0], state.token.at
        state.mean.add_(g - state.kept[v], alpha=1 / n)
        state.x.sub_(state.mean, alpha=gamma(state))
        state.kept[v] = g
        return [way.pass_on(state.token, now.generator())]

    flow = Flow(
        init,
        task,
        arrive,
        lambda state: state.x.repeat(n, 1),
        # The client receives the model and the mean; its answer is a part of both.
        kinds=(TaskKind(reads=1, up=()),),
        starts=(0,),
        messages="direct",
    )
    return Algorithm(flow=flow)

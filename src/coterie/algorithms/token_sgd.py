"""SGD of one model that walks from client to client on a graph, as a token.

At client v, where the token is at step t,

    x_{t+1} = x_t - lr / (n pi_v) g_v(x_t),    v_{t+1} ~ P_v                       (7.2)

Then the token goes on to v_{t+1} with x. pi_v is the share of steps that the walk
spends at client v. It is 1 / n for `metropolis`, so the factor 1 / (n pi_v) is 1. For
other walks, this factor gives all clients the same influence. Clients compute a
gradient only at every `wait`-th step of the walk.

References:
    Even, "Stochastic gradient descent under Markovian sampling schemes", ICML 2023,
    arXiv 2302.14428.

Differences: the factor 1 / (n pi_v). Without it the method minimises sum_v pi_v f_v.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..graphs.matrices import Mixing, linked_pairs
from ..graphs.walks import Token, WalkKind, walk_on
from ..options import Count, Positive, method
from ..types import Algorithm, Arrivals, Clients, Flow, Task, TaskKind


@dataclass
class State:
    """The model, and the token."""

    x: Tensor  # (D,)
    token: Token


def pass_token(clients: Clients, x: Tensor) -> Tensor:
    """A client program: x, unchanged."""
    return x


@method()
def token_sgd(
    mixing: Mixing,
    *,
    lr: Positive = 0.1,
    walk: WalkKind = "metropolis",
    wait: Count = 1,
) -> Algorithm:
    """SGD of one model that walks on a graph, also known as MC-SGD.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            clients neighbours.
        lr: step size.
        walk: how the token moves: `metropolis`, `simple`, `lazy`, `non_backtracking`,
            `cyclic`, `reshuffled` or `iid`.
        wait: steps of the walk for each gradient.
    """
    n = len(mixing)
    way = walk_on(walk, linked_pairs(mixing), n)
    shares = (1 / (n * way.law)).tolist()

    def init(x: Tensor) -> State:
        return State(x.mean(0), way.token())

    def task(state: State, client: int, time: float) -> Task:
        passes, came = state.token.t % wait > 0, state.token.came
        return Task((state.x,), int(passes), work=float(not passes), peer=came)

    def arrive(state: State, now: Arrivals) -> list[int]:
        if now.kind == 0:
            state.x.sub_(now.answers[0][0], alpha=lr * shares[state.token.at])
        return [way.pass_on(state.token, now.generator())]

    flow = Flow(
        init,
        task,
        arrive,
        lambda state: state.x.repeat(n, 1),
        # The model stays at its client, and goes on from there.
        kinds=(TaskKind(up=()), TaskKind(pass_token, up=())),
        starts=(0,),
        messages="direct",
    )
    return Algorithm(flow=flow)

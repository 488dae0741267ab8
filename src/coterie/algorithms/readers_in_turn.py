"""Adaptive All-for-one without waiting: a client computes for its readers in turn.

This is the flow of `adaptive_all_for_one`. The readers of a client are the clients that
learn from it.

Client k computes for its readers i, one after the other. It takes the gradient at x~_i,
the model of i when k begins. When k has finished,

    x_i <- x_i - lr c alpha_ik g_k(x~_i),

where c is the factor for late gradients. When k has computed for all its readers,
including itself, its turn ends and the next one begins. So a slow client sends its
gradients late, but gets the gradients of others on time, and makes nobody wait.

Every `every` turns, a client first computes gradients of two halves of its data at its
own model, and sends them to the others. Then it computes gradients of its halves at
each reader's model, and compares them with the gradients of the reader. After this, all
readers compute new weights from the comparisons that they have. A message holds one
model and its gradients, so there is at most one message for each client, not for each
pair.

If computing takes no time, this is adaptive All-for-one, because all answers of one
instant are then taken at the same models.

References:
    Philippenko, Le Bars, Scaman, Massoulié, "Adaptive collaboration for online
    personalized distributed learning with heterogeneous clients", NeurIPS 2025, for
    rounds. The version without waiting is ours.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..collaboration.beliefs import (
    Belief,
    Trust,
    no_belief,
    own_statistics,
    pair_statistics,
)
from ..collaboration.best_fit import mean_of_partners
from ..collaboration.weights import Criterion
from ..optim import delays
from ..types import Arrivals, Clients, Comparison, Flow, Oracle, Task, TaskKind

GRADIENT, OWN, COMPARED = range(3)


@dataclass
class State:
    """Models, comparisons, beliefs, and the progress of each client's turn."""

    x: Tensor  # (N, D)
    page: Tensor  # (N, D) the models as others see them
    moved: list[int]  # clients whose model has changed since the pages
    time: float  # the time when pages were copied
    halves: tuple[Tensor, ...]  # (N, D) a page, gradients of halves; (N, 1) samples
    seen: Comparison  # since weights last changed; on the CPU, as are the next two
    belief: Belief
    alpha: Tensor  # (N, N)
    kinds: list[int]  # the part of its turn in which each client is
    turns: list[int]  # finished turns
    left: list[list[int]]  # the readers that it has not served yet
    reader: list[int]  # the reader that it serves
    since: list[float]  # when its turn began
    held: list[int]  # clients between two turns


def readers_in_turn(
    precision: Tensor | None,
    near: Tensor | None,
    trust: Trust,
    phi: Criterion,
    *,
    lr: float,
    every: int,
    samples: int,
    late: str,
) -> Flow:
    """Adaptive All-for-one for clients that work at their own pace.

    Args:
        precision: (N,) as in `adaptive_all_for_one`.
        near: (N, N) which pairs may be compared; None: all.
        trust: how to estimate how much others help, and which weights follow from this.
        phi: the criterion that turns estimates into weights.
        lr: the largest step size.
        every: turns between two comparisons.
        samples: the number of training samples that a client uses in a comparison; 0:
            all.
        late: rule for late gradients.
    """

    def init(x: Tensor) -> State:
        n = len(x)
        blank = torch.zeros_like(x)
        return State(
            x.clone(),
            x.clone(),
            [],
            0.0,
            (x.clone(), blank, blank.clone(), x.new_zeros(n, 1)),
            _nothing_seen(x),
            no_belief(x[:, :0].cpu()),
            torch.eye(n, dtype=x.dtype),
            [OWN] * n,
            [0] * n,
            [[] for _ in range(n)],
            list(range(n)),
            [0.0] * n,
            [],
        )

    def arrive(state: State, now: Arrivals) -> list[int]:
        _turn_page(state, now.time)
        _take_answers(state, now, lr, late)
        ended = [client for client in now.clients if not _serve(state, client)]
        goes_on = [client for client in now.clients if client not in ended]
        if now.kind == COMPARED and ended:
            weigh(state)
        elif now.kind == GRADIENT:
            state.held += ended
            ended = []
        begin = _begin_turns(state, now.time)
        for client in ended + begin:
            proceed(state, client)
        return goes_on + ended + begin

    def weigh(state: State) -> None:
        """Updates the weights of readers from the new comparisons."""
        others = ~torch.eye(len(state.x), dtype=torch.bool)
        rows = (state.seen.known & others).any(1)
        seen = state.seen._replace(known=state.seen.known & rows[:, None])
        state.belief = trust.learn(state.belief, seen)
        state.seen.known[rows] = False
        state.alpha, _ = trust.weights(state.belief, precision, phi)

    def proceed(state: State, client: int) -> None:
        """Begins the next part of a client's turn, or its next turn."""
        n, kind = len(state.x), state.kinds[client]
        others = [(client + j) % n for j in range(1, n)]
        if kind == GRADIENT and state.turns[client] % every == 0:
            state.kinds[client], state.reader[client] = OWN, client
            return
        if kind == OWN:
            shown = state.seen.samples.tolist()
            state.kinds[client] = COMPARED
            meets = [True] * n if near is None else near[:, client].tolist()
            state.left[client] = [i for i in others if shown[i] and meets[i]]
        else:
            state.kinds[client] = GRADIENT
            readers = (state.alpha[:, client] > 0).tolist()
            state.left[client] = [i for i in [client, *others] if readers[i]]
        if not _serve(state, client):  # no reader shows anything yet
            weigh(state)
            proceed(state, client)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return mean_of_partners(oracle, state.x, state.alpha.to(state.x))

    return Flow(
        init,
        lambda state, client, time: _task(state, client, samples),
        arrive,
        welcome=welcome,
        info=lambda state: {"weights": state.alpha},
        kinds=(
            TaskKind(verb="blended", reads=1),
            TaskKind(functools.partial(_halve, samples=samples or None), "compare", 1),
            TaskKind(
                functools.partial(_compare, samples=samples or None),
                "compare",
                down=(0, 1, 2),
                up=(),
            ),
        ),
        together=True,
        # On a graph all readers are neighbours, and no server relays messages.
        messages="relayed" if near is None else "direct",
    )


def _task(state: State, client: int, samples: int) -> Task:
    """The next task of a client."""
    kind, i = state.kinds[client], state.reader[client]
    t = state.turns[client] + 1
    if kind == GRADIENT:
        return Task((state.page[i],), kind, t, peer=i)
    rows = tuple(part[i] for part in state.halves)
    if kind == OWN:
        rows = (state.x[client], *rows[1:])
    used = float(samples or math.inf)  # infinity: all samples
    return Task(rows, kind, t, work=0, samples=used, peer=i)


def _turn_page(state: State, time: float) -> None:
    """Shows others all steps before this time."""
    if time > state.time:
        state.page[state.moved] = state.x[state.moved]
        state.moved, state.time = [], time


def _take_answers(state: State, now: Arrivals, lr: float, late: str) -> None:
    """Takes a step with gradients, or stores halves and comparisons."""
    k = torch.tensor(now.clients)
    i = torch.tensor([state.reader[client] for client in now.clients])
    if now.kind == GRADIENT:
        (g,) = now.answers
        c = [delays.factor(late, len(state.x), tau) for tau in now.delays]
        share = (state.alpha[i, k] * torch.tensor(c, dtype=torch.float64)).to(g)
        state.x.index_add_(0, i.to(g.device), share[:, None] * g, alpha=-lr)
        state.moved += i.tolist()
    elif now.kind == OWN:
        _show(state, k, *now.answers)
    else:
        seen = state.seen
        for j, part in enumerate((seen.cross, seen.pooled, seen.noise)):
            part[i, k] = now.answers[0][:, j].cpu()
        seen.known[i, k] = True


def _begin_turns(state: State, time: float) -> list[int]:
    """Begins the next turn of clients that have ended one, and returns these clients.

    If computing takes no time, a client first waits for all clients that began the
    previous turn at the same instant.
    """
    n, held = len(state.x), set(state.held)
    here = [j for j in range(n) if state.since[j] == time and j not in held]
    behind = min((state.turns[j] for j in here), default=math.inf)
    free = [k for k in state.held if state.turns[k] < behind]
    state.held = [k for k in state.held if state.turns[k] >= behind]
    for client in free:
        state.page[client] = state.x[client]
        state.turns[client] += 1
        state.since[client] = time
    return free


def _serve(state: State, client: int) -> bool:
    """Whether there is a next reader, which the client then serves."""
    left, kind = state.left[client], state.kinds[client]
    while left:
        reader = left.pop(0)
        wanted = state.alpha[reader, client] if kind == GRADIENT else None
        if wanted is None or float(wanted) > 0:
            state.reader[client] = reader
            return True
    return False


def _nothing_seen(x: Tensor) -> Comparison:
    """The comparison before clients compare anything."""
    pair = torch.zeros(len(x), len(x), dtype=x.dtype)
    single = torch.zeros(len(x), dtype=x.dtype)
    parts = pair, single, pair, single, pair, single, single, pair.bool()
    return Comparison(*(part.clone() for part in parts))


def _show(
    state: State, k: Tensor, page: Tensor, a: Tensor, b: Tensor, used: Tensor
) -> None:
    """Stores the models of clients k, and their halves' gradients at these models."""
    for kept, new in zip(state.halves, (page, a, b, used[:, None]), strict=True):
        kept[k.to(new.device)] = new
    seen = state.seen
    found = own_statistics((a, b, used)).cpu()
    for part, new in zip(
        (seen.own, seen.own_pooled, seen.variance), found, strict=True
    ):
        part[k] = new
    seen.samples[k] = used.cpu().to(seen.samples)
    seen.known[k, k] = True


class _Halving(Clients, Protocol):
    def half_grads(
        self, points: Tensor, samples: int | None
    ) -> tuple[Tensor, Tensor, Tensor]: ...


def _halve(clients: _Halving, x: Tensor, *, samples: int | None) -> tuple[Tensor, ...]:
    """A client program: gradients of two halves at the client's own model."""
    return (x, *clients.half_grads(x, samples))


def _compare(
    clients: _Halving,
    x: Tensor,
    a: Tensor,
    b: Tensor,
    used: Tensor,
    *,
    samples: int | None,
) -> Tensor:
    """A client program: cross, pooled and noise of a `Comparison` with a reader.

    Args:
        clients: the clients that compare.
        x: the readers' models.
        a: the reader's gradients at x, on one half of its data.
        b: the reader's gradients at x, on the other half.
        used: (n, 1) the number of samples in both halves.
        samples: the number of own samples to use; None: all.
    """
    return pair_statistics((a, b, used[:, 0]), clients.half_grads(x, samples)).T

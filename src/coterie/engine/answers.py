"""Answers of tasks in progress, all computed when the first of them is needed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Arrivals, ClientsInTime, Flow
from .checkpoints import Moment


class Answers:
    """The answers of clients. An answer depends only on the rows of its task."""

    def __init__(self, flow: Flow, clients: ClientsInTime, *, grouped: bool) -> None:
        self._kinds, self._clients, self._grouped = flow.kinds, clients, grouped

    def arrivals(
        self, now: Moment, clients: list[int], delays: list[int], seed: int
    ) -> list[Arrivals]:
        """The answers of clients that arrive now, one entry for each kind of task."""
        time, before = now.totals.time, (now.totals.updates, seed)
        if len(clients) == 1 or len(self._kinds) == 1:
            kind = now.clients[clients[0]].kind
            answers = self.of(now, clients, kind)
            return [Arrivals(time, clients, answers, delays, *before, kind, [])]
        kinds, found = [now.clients[client].kind for client in clients], []
        for kind in sorted(set(kinds)):
            mine = [j for j, its in enumerate(kinds) if its == kind]
            some, late = [clients[j] for j in mine], [delays[j] for j in mine]
            answers = self.of(now, some, kind)
            found.append(Arrivals(time, some, answers, late, *before, kind, []))
        return found

    def of(self, now: Moment, clients: list[int], kind: int) -> tuple[Tensor, ...]:
        """The answers of these clients, computed with all others in progress."""
        missing = [i for i in clients if not now.clients[i].computed]
        if missing:
            if self._grouped:
                missing = [
                    i
                    for i, client in enumerate(now.clients)
                    if client.busy and not client.computed and client.kind == kind
                ]
                self._compute(now, missing, kind)
            else:
                for client in missing:
                    self._compute(now, [client], kind)
        if len(clients) == 1:
            return tuple(answer[clients[0]][None] for answer in now.answers[kind])
        return tuple(answer[clients] for answer in now.answers[kind])

    def _compute(self, now: Moment, clients: list[int], kind: int) -> None:
        program, verb, reads, *_ = self._kinds[kind]
        # A kernel must be compiled again for every number of rows. So we use only a few
        # numbers, and repeat a client to fill up the rows.
        spare = self._clients.width(len(clients)) - len(clients)
        places = torch.tensor(clients + clients[:1] * spare, device=now.rows[0].device)
        rounds = [now.clients[i].round for i in clients]
        rounds += rounds[:1] * spare
        asked = self._clients.task_clients(places, rounds, verb=verb)
        found = program(asked, *(row[places] for row in now.rows[:reads]))
        who = places[: len(clients)]
        found = found if isinstance(found, tuple) else (found,)
        found = tuple(answer[: len(clients)] for answer in found)
        if not now.answers[kind]:
            n = len(now.clients)
            now.answers[kind] = [
                torch.zeros((n, *answer.shape[1:]), dtype=answer.dtype).to(answer)
                for answer in found
            ]
        for kept, answer in zip(now.answers[kind], found, strict=True):
            kept[who] = answer
        for client in clients:
            now.clients[client].computed = True

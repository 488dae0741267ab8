"""Messages of a run in virtual time: how long they travel, and how large they are."""

from __future__ import annotations

from ..checks import InputError, integer, one_of
from ..types import Algorithm, Arrivals, Flow, Task
from .checkpoints import Moment
from .clocks import LinkDelays, Rings
from .times import Times


class Messages:
    """The travel times and sizes of tasks to clients, and of their answers."""

    def __init__(self, flow: Flow, times: Times, now: Moment) -> None:
        self._flow, self._times, self._now = flow, times, now
        self._at_once = flow.messages == "none" or not times.travelling
        self._direct = {(v, w): count for v, w, count in now.links}

    @property
    def links(self) -> list[list[int]]:
        """Both ends of each link, and how many messages they sent each other."""
        return [[v, w, count] for (v, w), count in self._direct.items()]

    def count_down(self, client: int, task: Task) -> None:
        """Counts the rows that come to a client."""
        down = self._flow.kinds[task.kind].down
        if down == ():
            return
        rows = task.rows if down is None else [task.rows[j] for j in down]
        self._count(client, task.peer, sum(row.numel() for row in rows))

    def count_up(self, now: Arrivals) -> None:
        """Counts the answers that leave clients."""
        up = self._flow.kinds[now.kind].up
        if up == ():
            return
        some = now.answers if up is None else [now.answers[j] for j in up]
        values = sum(answer[0].numel() for answer in some)
        for client in now.clients:
            peer = self._now.clients[client].peer
            self._count(client, None if peer < 0 else peer, values)

    def _count(self, client: int, peer: int | None, values: float) -> None:
        if self._flow.messages == "none" or peer == client:
            return
        if peer is None:
            self._now.totals.server += values
        else:
            self._now.totals.peers += values

    def there(self, client: int, task: Task, number: int) -> float:
        """How long a task travels; `number` counts messages via a server."""
        return self._travel(client, task, number, self._flow.kinds[task.kind].down)

    def back(self, client: int, task: Task, number: int) -> float:
        """How long the answer travels."""
        return self._travel(client, task, number, self._flow.kinds[task.kind].up)

    def _travel(
        self, client: int, task: Task, number: int, parts: tuple[int, ...] | None
    ) -> float:
        if self._at_once:
            return 0.0
        peer = task.peer
        if self._flow.messages == "relayed" or peer is None:
            return self._times.relay_delay(client, number)
        if peer == client or parts == ():
            return 0.0
        pair = (min(client, peer), max(client, peer))
        count = self._direct.get(pair, 0)
        self._direct[pair] = count + 1
        return self._times.link_delay(*pair, count)


def flow_of(
    algorithm: Algorithm,
    rings: Rings | None,
    links: LinkDelays | None,
    capacity: int | None,
) -> Flow:
    """The flow of an algorithm; refuses arguments that do not fit it."""
    flow = algorithm.flow
    if flow is None:
        raise InputError("the method has rounds only: it has no `flow`.")
    if (rings is None) != (flow.meet is None and not flow.couples):
        needs = "needs" if rings is None else "cannot use"
        raise InputError(f"the method {needs} `rings`, when pairs of clients meet.")
    if (flow.send is None) != (flow.meet is None):
        raise InputError("a flow must have both `send` and `meet`, or neither.")
    one_of("messages", flow.messages, ("relayed", "direct", "none", "instant"))
    if links is not None and flow.messages == "instant":
        raise InputError(
            "`links` cannot be set for this method, which assumes that messages take "
            f"no time, got {links!r}."
        )
    if capacity is not None:
        integer("capacity", capacity, at_least=1)
        if flow.couples:
            raise InputError("`capacity` cannot be set if tasks begin in pairs.")
    return flow

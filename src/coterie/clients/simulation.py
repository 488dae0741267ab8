"""The clients of a simulation: all N of them answer in one vectorised pass.

`Simulation` holds data, model and seed; `Simulation.at(t)` is the oracle of round t.
Each question draws fresh minibatches, with replacement, from a stream named by
(seed, purpose, round, question), in which every client has its own sequence. So answers
do not depend on what else was asked, resuming is exact, and a client that is asked
alone at its site gives the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from .. import seeds
from ..checks import InputError, integer, one_of
from ..data.federation import Federation, PartName
from ..models import OBJECTIVES, Objective
from ..types import Comparison, Program
from .kernels import Batch, Kernel

Answer = TypeVar("Answer")

_DRAWN_AHEAD = 16
"""Minibatches of a client program that are drawn in one pass, at most."""


class Simulation:
    """A federation whose clients all live in this process."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        objective: Objective | None = None,
        batch_size: int = 16,
        seed: int = 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        loop: bool = False,
        compiled: bool = False,
    ) -> None:
        """Places data and model on the device.

        Args:
            federation: the clients' data.
            module: architecture of every client's model.
            objective: what is minimised and measured; None takes that of the task.
            batch_size: samples of a minibatch; 0 takes the whole training part.
            seed: names the random streams of minibatches.
            device: where the work is done.
            dtype: of data and models.
            loop: debug mode; runs client after client, pair after pair, and names the
                client in errors.
            compiled: compile the gradients, which pays for long runs.
        """
        device = torch.device(device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("`device` cuda needs a CUDA GPU, but torch sees none.")
        self.batch_size = integer("batch_size", batch_size, at_least=0)
        self.seed = seed
        self.loop = loop
        self.dtype = dtype
        task = one_of("task", federation.task, OBJECTIVES)
        self.objective = objective or OBJECTIVES[task]
        self.federation = federation.to(device, dtype)
        # (N,) samples of each client's minibatch, for counting.
        self.batch_counts = (
            torch.full((len(federation),), batch_size, dtype=torch.float64)
            if batch_size
            else federation.train.size.to("cpu", torch.float64)
        )
        self.kernel = Kernel(
            module,
            self.objective,
            self.federation.features,
            self.federation.targets,
            dtype=dtype,
            by_row=True if loop else None,
            compiled=compiled and not loop,
        )

    def __len__(self) -> int:
        return len(self.federation)

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> SimulatedOracle:
        """The oracle of round t, where the `active` clients take part (None: all)."""
        clients = self.federation.clients
        if active is None:
            active = torch.ones(len(self), dtype=torch.bool)
        if active.shape != (len(self),) or not active.any():
            raise InputError(
                f"`active` must name at least one of {len(self)} clients, got {active}."
            )
        return SimulatedOracle(self, t, active.to(clients.device), purpose)

    def staggered(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> _SimulatedClients:
        """The clients at these positions, each in a round of its own.

        Their samples are those that this verb would use in these rounds when it is
        asked first: a client that is alone in being early or late is told the same.

        Args:
            who: positions of the clients.
            rounds: of each of them.
            verb: `grads`, `each`, `blended` or `compare`.
        """
        active = torch.zeros(len(self), dtype=torch.bool).index_fill(0, who.cpu(), True)
        oracle = self.at(0, active)

        def keys(number: int) -> list[int]:
            if verb != "each":
                return [seeds.key(self.seed, "step", t, verb, number) for t in rounds]
            calls = [seeds.key(self.seed, "step", t, verb, 0) for t in rounds]
            return [seeds.key(call, number) for call in calls]

        draw = _FreshMinibatches(self, who, keys)
        costs = oracle._only(who, self.batch_counts)
        return _SimulatedClients(oracle, who, draw, costs, keys)

    def width(self, clients: int) -> int:
        """How many clients to ask at once where so many are to be asked, or more."""
        if not self.kernel.compiled:
            return clients
        on_gpu = self.federation.features.is_cuda  # where all cost as much as few
        widths = [len(self)] if on_gpu else _steady_widths(len(self))
        return next(width for width in widths if width >= clients)

    def minibatch(self, who: Int[Tensor, " m"], stream: int) -> Batch:
        """A fresh minibatch of each of the clients at these positions."""
        return self.minibatches(who, [stream])[0]

    def minibatches(
        self, who: Int[Tensor, " m"], streams: Sequence[int | Sequence[int]]
    ) -> list[Batch]:
        """Fresh minibatches of these clients in several streams, drawn in one pass.

        Args:
            who: positions of the clients.
            streams: a key for each minibatch, or a key for each of the clients in it.
        """
        train = self.federation.train
        if self.batch_size == 0:
            return [self.whole(who)] * len(streams)
        names = self.federation.clients[who]
        keys = torch.tensor(streams, device=names.device)
        keys = keys[:, None] if keys.dim() == 1 else keys
        draws = seeds.below(train.size[who], keys, names, self.batch_size)
        index = train.index[train.start[who][:, None] + draws]
        weight = torch.full(
            index.shape[1:], 1 / self.batch_size, dtype=self.dtype, device=index.device
        )
        return [Batch(some, weight) for some in index]

    def whole(self, who: Int[Tensor, " m"]) -> Batch:
        """All training samples of the clients at these positions."""
        index, mask = self.federation.train.rows(who)
        return Batch(index, mask / mask.sum(1, keepdim=True).to(self.dtype))

    def halves(
        self,
        who: Int[Tensor, " m"],
        stream: int | Sequence[int],
        samples: int | None,
    ) -> tuple[Batch, Batch, Tensor]:
        """Two random disjoint halves of each client's training data, and their size.

        Args:
            who: positions of the clients.
            stream: names the random order, of all or of each.
            samples: how many samples the two halves have together; None takes all.
        """
        index, mask = self.federation.train.rows(who)
        names = self.federation.clients[who]
        keys = torch.as_tensor(stream, device=names.device).reshape(1, -1)
        order = seeds.bits(keys, names, index.shape[1])[0]
        order = order.masked_fill(~mask, torch.iinfo(order.dtype).max).argsort(1)
        index = index.gather(1, order)
        used = mask.sum(1)
        if samples is not None:
            used = used.clamp(max=samples)
        place = torch.arange(index.shape[1], device=index.device)
        first = place < (used // 2)[:, None]
        second = (place < used[:, None]) & ~first
        return self._half(index, first), self._half(index, second), used.to(self.dtype)

    def _half(self, index: Tensor, chosen: Tensor) -> Batch:
        """The chosen samples of each row, moved to its front and cut to the longest."""
        size = chosen.sum(1, keepdim=True)
        order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        order = order[:, : int(size.max())]
        weight = chosen.gather(1, order) / size.to(self.dtype)
        return Batch(index.gather(1, order), weight)

    def evaluate(
        self, x: Float[Tensor, "n d"], name: PartName
    ) -> dict[str, Float[Tensor, " n"]]:
        """Loss and measures of each client's own model on that client's own part."""
        part = self.federation.part(name)
        who = torch.arange(len(self), device=x.device)
        found = []
        for group in who.split(self.kernel.evaluated_at_once(int(part.size.max()))):
            index, mask = part.rows(group)
            weight = mask / part.size[group][:, None].to(self.dtype)
            found.append(self.kernel.measure(x[group], Batch(index, weight)))
        return {name: torch.cat([some[name] for some in found]) for name in found[0]}


class SimulatedOracle:
    """One round's questions to simulated clients; see `coterie.types.Oracle`."""

    def __init__(
        self, simulation: Simulation, t: int, active: Bool[Tensor, " n"], purpose: str
    ) -> None:
        self._simulation = simulation
        self._t = t
        self._purpose = purpose
        self._asked: Counter[str] = Counter()
        self._who = active.nonzero()[:, 0]  # positions of those who take part
        self._plan: _Plan | None = None
        self._next = _FreshMinibatches(
            simulation, self._who, lambda number: self._key("grads", number)
        )
        self.active = active
        self.gradients = torch.zeros(len(active), dtype=torch.float64)

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i), zero for inactive clients."""
        batch = self._next()
        self._count(self._who, 1)
        points = x if len(self._who) == len(x) else x[self._who]
        g = self._by_client(lambda rows: self._kernel.grad(points[rows], batch[rows]))
        return self._spread_out(g, x)

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "n n"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i) over active k, for active i."""
        everyone = torch.arange(len(x), device=x.device)
        batch = self._simulation.minibatch(everyone, self.stream("blended"))
        if self._plan is None or self._plan.weights is not weights:
            self._plan = _Plan(weights, self.active, steady=self._kernel.compiled)
        plan = self._plan
        self.gradients += plan.readers * self._simulation.batch_counts
        if self._simulation.loop:
            return self._blended_pair_by_pair(x, plan.used, batch)
        g = None
        for readers, columns, share in plan.groups:
            index = batch.index[columns].flatten(-2)
            weight = (share[:, :, None] * batch.weight[columns]).flatten(1)
            blend = Batch(index, weight)
            if len(readers) == len(x):
                return self._kernel.grad(x, blend)
            g = torch.zeros_like(x) if g is None else g
            g[readers] = self._kernel.grad(x[readers], blend)
        return torch.zeros_like(x) if g is None else g

    def compare(
        self, x: Float[Tensor, "n d"], *, samples: int | None = None
    ) -> Comparison:
        """Distances of all pairs of active clients; never more than a chunk of them."""
        if samples is not None:
            integer("samples", samples, at_least=2)
        who, n = self._who, len(x)
        few = (self._simulation.federation.train.size[who] < 2).nonzero()[:, 0]
        if len(few):
            raise InputError(
                "comparing gradients needs two training samples of every client, but "
                f"client {int(self._simulation.federation.clients[who[few[0]]])} has "
                "one."
            )
        stream = self.stream("compare")
        first, second, used = self._simulation.halves(who, stream, samples)
        m = len(who)
        everyone = torch.arange(m, device=x.device)
        own_a, own_b = self._half_gradients(x[who], first, second, everyone)
        values = x.new_zeros(3, m * m)
        pairs = torch.arange(m * m, device=x.device)
        pairs = pairs[pairs // m != pairs % m]
        size = self._kernel.chunk(first.index.shape[1], extra=6)
        for some in pairs.split(size) if m > 1 else ():
            i, k = some // m, some % m
            a, b = self._half_gradients(x[who[i]], first, second, k)
            u, v = own_a[i] - a, own_b[i] - b
            values[0, some] = (u * v).sum(1)
            values[1, some] = (u - v).square().sum(1) / 4
            values[2, some] = ((own_a[i] - own_b[i]) * (a - b)).sum(1)
        # Every client is asked for both halves at the model of every active client.
        self.gradients[who.cpu()] += used.cpu().double() * m
        known = self.active[:, None] & self.active
        filled = x.new_zeros(3, n, n)
        filled[:, known] = values
        of_clients = x.new_zeros(3, n)
        of_clients[0, who] = (own_a * own_b).sum(1)
        of_clients[1, who] = (own_a - own_b).square().sum(1) / 4
        of_clients[2, who] = used
        return Comparison(
            filled[0],
            of_clients[0],
            filled[1],
            of_clients[1],
            filled[2],
            of_clients[2],
            known,
        )

    def each(
        self, program: Program, *rows: Tensor, **options: float | int | str | bool
    ) -> tuple[Tensor, ...]:
        """Runs a client program, once with the rows of all active clients."""
        return self.run(program, rows, options, number=None)

    def run(
        self,
        program: Program,
        rows: tuple[Tensor, ...],
        options: dict[str, float | int | str | bool],
        *,
        number: int | None,
    ) -> tuple[Tensor, ...]:
        """What `each` does, as question `number` where somebody else counts."""
        call = self.stream("each", number)
        costs = self._simulation.batch_counts
        whole = len(self._who) == len(self.active)
        given = rows if whole else tuple(row[self._who] for row in rows)

        def run(some: slice) -> tuple[Tensor, ...]:
            who = self._who[some]
            draw = _FreshMinibatches(
                self._simulation, who, lambda number: seeds.key(call, number)
            )
            clients = _SimulatedClients(self, who, draw, self._only(who, costs))
            result = program(clients, *(row[some] for row in given), **options)
            return result if isinstance(result, tuple) else (result,)

        if self._simulation.loop:
            parts = [self._named(j, run) for j in range(len(self._who))]
            results = tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))
        else:
            results = run(slice(None))
        if whole:
            return results
        kept = []
        for row, result in zip(rows, results, strict=False):
            kept.append(row.index_copy(0, self._who, result))
        return tuple(kept)

    @property
    def _kernel(self) -> Kernel:
        return self._simulation.kernel

    def stream(self, verb: str, number: int | None = None) -> int:
        """The key of a question; questions of a verb are numbered as they are asked.

        Args:
            verb: what is asked.
            number: of the question, where somebody else counts: at a site, the reader.
        """
        if number is None:
            number = self._asked[verb]
            self._asked[verb] += 1
        return self._key(verb, number)

    def _key(self, verb: str, *names: int) -> int:
        return seeds.key(self._simulation.seed, self._purpose, self._t, verb, *names)

    def _only(self, who: Tensor, values: Tensor) -> Tensor:
        """The values (N,) of these clients, and zero for the others, on the CPU."""
        here = who.cpu()
        return torch.zeros_like(values).index_copy(0, here, values[here])

    def _count(self, who: Tensor, times: int) -> None:
        """Counts `times` gradients of each sample in these clients' minibatches."""
        counts = self._simulation.batch_counts
        if len(who) == len(counts):
            self.gradients += times * counts
        else:
            self.gradients[who.cpu()] += times * counts[who.cpu()]

    def _spread_out(self, rows: Tensor, x: Tensor) -> Tensor:
        if len(rows) == len(x):
            return rows
        return torch.zeros_like(x).index_copy(0, self._who, rows)

    def _by_client(self, ask: Callable[[slice], Tensor]) -> Tensor:
        """All rows at once, or in debug mode one after the other with names."""
        if not self._simulation.loop:
            return ask(slice(None))
        return torch.cat([self._named(j, ask) for j in range(len(self._who))])

    def _named(self, j: int, ask: Callable[[slice], Answer]) -> Answer:
        """The answer of the j-th active client; in debug mode errors name it."""
        try:
            return ask(slice(j, j + 1))
        except Exception as error:
            if not self._simulation.loop:
                raise
            client = int(self._simulation.federation.clients[self._who[j]])
            raise RuntimeError(f"client {client}, round {self._t}: {error}") from error

    def _half_gradients(
        self, points: Tensor, first: Batch, second: Batch, k: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients at each point of both halves of the active clients at places k."""
        if not self._simulation.loop:
            grad = self._kernel.grad
            return grad(points, first[k]), grad(points, second[k])
        pairs = enumerate(k.tolist())
        answers = [
            self._one_pair(points[j : j + 1], first, second, c) for j, c in pairs
        ]
        a, b = zip(*answers, strict=True)
        return torch.cat(a), torch.cat(b)

    def _one_pair(
        self, point: Tensor, first: Batch, second: Batch, client: int
    ) -> tuple[Tensor, Tensor]:
        def ask(one: slice) -> tuple[Tensor, Tensor]:
            grad = self._kernel.grad
            return grad(point, first[one]), grad(point, second[one])

        return self._named(client, ask)

    def _blended_pair_by_pair(self, x: Tensor, used: Tensor, batch: Batch) -> Tensor:
        batch = batch[self._who]
        g = torch.zeros_like(x)
        for j, k in enumerate(self._who.tolist()):
            for i in used[:, k].nonzero()[:, 0].tolist():

                def ask(one: slice, point: Tensor = x[i : i + 1]) -> Tensor:
                    return self._kernel.grad(point, batch[one])

                g[i] += used[i, k] * self._named(j, ask)[0]
        return g


class _Plan:
    """Which readers ask whom: groups of rows that need about as many contributors.

    A column of weight zero costs nothing, except that rows of a group are filled up to
    its largest number of contributors, which is less than twice the smallest. A
    compiled kernel is made anew for every shape, so there it is one group of all
    readers with a quarter, a half or all of the columns.
    """

    def __init__(self, weights: Tensor, active: Tensor, *, steady: bool) -> None:
        self.weights = weights
        self.used = weights * active[:, None] * active
        present = self.used != 0
        needed = present.sum(1)
        self.readers = present.sum(0).cpu().double()  # how many ask client k
        # Readers (r,), contributors (r, c) or, the same for all readers, (c,), and the
        # readers' weights of these contributors (r, c).
        self.groups: list[tuple[Tensor, Tensor, Tensor]] = []
        counts = needed.tolist()
        order = present.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        for mine in self._grouped(counts, active, steady):
            most = max(counts[i] for i in mine)
            if steady:
                most = next(c for c in _steady_widths(len(weights)) if c >= most)
            readers = torch.tensor(mine, device=weights.device)
            # When most columns are needed, all rows share one set of samples.
            if 2 * most > len(weights):
                columns = active if steady else present[readers].any(0)
                columns = columns.nonzero()[:, 0]
                share = self.used[readers[:, None], columns]
            else:
                columns = order[readers, :most]
                share = self.used[readers[:, None], columns]
                # Rows are filled up with a contributor of theirs, at weight zero, so
                # that nobody is asked who has no part in the answer.
                columns = torch.where(share != 0, columns, columns[:, :1])
            self.groups.append((readers, columns, share))

    @staticmethod
    def _grouped(counts: list[int], active: Tensor, steady: bool) -> list[list[int]]:
        if steady:
            return [active.nonzero()[:, 0].tolist()]
        groups: dict[int, list[int]] = {}
        for i, count in enumerate(counts):
            if count:
                groups.setdefault(count.bit_length(), []).append(i)
        return list(groups.values())


def _steady_widths(n: int) -> list[int]:
    """How many columns a compiled blend may have: a quarter, a half, or all."""
    return [-(-n // 4), -(-n // 2), n]


class _FreshMinibatches:
    """Minibatches one after the other, for questions that are likely to go on."""

    def __init__(
        self,
        simulation: Simulation,
        who: Tensor,
        stream: Callable[[int], int | list[int]],
    ) -> None:
        self._simulation = simulation
        self._who = who
        self._stream = stream  # of minibatch number 0, 1, ..., or one of each client
        self._drawn = 0
        self._ready: list[Batch] = []  # drawn and not used yet, the next one last

    def __call__(self) -> Batch:
        if not self._ready:
            # As many as were asked for so far, so that who asks often draws rarely.
            ahead = max(1, min(self._drawn, _DRAWN_AHEAD))
            numbers = range(self._drawn, self._drawn + ahead)
            streams = [self._stream(number) for number in numbers]
            self._ready = self._simulation.minibatches(self._who, streams)[::-1]
            self._drawn += ahead
        return self._ready.pop()


class _SimulatedClients:
    """What a client program sees of n clients; see `coterie.types.Clients`."""

    def __init__(
        self,
        oracle: SimulatedOracle,
        who: Int[Tensor, " n"],
        draw: Callable[[], Batch],
        cost: Float[Tensor, " m"],
        streams: Callable[[int], list[int]] | None = None,
    ) -> None:
        """Prepares the clients at positions `who`.

        Args:
            oracle: counts what is asked.
            who: positions of the clients.
            draw: gives the samples of the next question.
            cost: what a gradient of each sample adds to the count of every client; on
                the CPU, so that questions need not wait for the device.
            streams: names the random orders of a comparison, one for each client.
        """
        self._oracle, self._who = oracle, who
        self._draw, self._cost, self._streams = draw, cost, streams

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's samples at points[j]."""
        self._oracle.gradients += self._cost
        return self._oracle._kernel.grad(points, self._draw())

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is the loss of client j's samples at points[j]."""
        return self._oracle._kernel.loss(points, self._draw())

    def hvp(
        self, points: Float[Tensor, "n d"], vectors: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """Row j is the Hessian on client j's samples, times vectors[j]."""
        self._oracle.gradients += 2 * self._cost
        return self._oracle._kernel.hvp(points, vectors, self._draw())

    def half_grads(
        self, points: Float[Tensor, "n d"], samples: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of both halves of the data that a comparison uses, and its size."""
        assert self._streams is not None  # asked of staggered clients only
        first, second, used = self._oracle._simulation.halves(
            self._who, self._streams(0), samples
        )
        self._oracle.gradients[self._who.cpu()] += used.cpu().double()
        grad = self._oracle._kernel.grad
        return grad(points, first), grad(points, second), used

    def held(self) -> _SimulatedClients:
        """The same clients with one minibatch for every question to come."""
        batch = self._draw()
        return _SimulatedClients(self._oracle, self._who, lambda: batch, self._cost)

    def whole(self) -> _SimulatedClients:
        """The same clients with all of their training data for every question."""
        simulation = self._oracle._simulation
        batch = simulation.whole(self._who)
        sizes = simulation.federation.train.size.to("cpu", torch.float64)
        cost = self._oracle._only(self._who, sizes)
        return _SimulatedClients(self._oracle, self._who, lambda: batch, cost)

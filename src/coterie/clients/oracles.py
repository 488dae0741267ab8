"""The oracle of one round: it asks the clients of this process, and sends their rows.

All n clients at hand (those of this process) compute in one vectorised pass. The verbs
are the methods of the oracle that reach other clients, such as `average`. They get the
rows of clients in other processes through a group (`coterie.clients.groups`). If all N
clients are in this process, a verb is a product of matrices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import seeds
from ..checks import InputError, integer
from ..types import (
    CentralProgram,
    Comparison,
    Message,
    Option,
    Program,
    RunningStatistics,
    Transfer,
    Widths,
    statistics_of,
    tensor_of,
)
from .blends import BlendPlan, Release, as_it_is, blend, blended_by_pairs, with_own
from .comparisons import ComparisonPlan, HalfGrads, compare_pairs, of_shared_columns
from .epochs import packs_of
from .groups import (
    Group,
    WithCoordinator,
    average_rows,
    block,
    blocks,
    fetch_rows,
    mix_rows,
    mix_rows_at_hand,
    of_present,
    return_answers,
)
from .programs import (
    Evaluator,
    SimulatedClients,
    minibatches_of,
    only,
    results_of,
)
from .samples import Batch, ClientSamples, FreshMinibatches
from .traffic import Meter, Sending, Wrap
from .ways import in_threads

Answer = TypeVar("Answer")


class LocalClients(NamedTuple):
    """The clients of this process, and the group that reaches the other clients."""

    samples: ClientSamples
    kernel: Evaluator
    seed: int
    loop: bool  # debug mode: client after client, pair after pair
    group: Group


class SimulatedOracle:
    """One round's questions to simulated clients; see `coterie.types.Oracle`."""

    def __init__(
        self,
        held: LocalClients,
        t: int,
        present: Bool[Tensor, " m"],
        purpose: str,
        here: Int[Tensor, " p"] | None = None,
    ) -> None:
        """Prepares the oracle of round t.

        Args:
            held: the clients at hand.
            t: the round.
            present: (N,) which clients take part.
            purpose: names the random streams.
            here: the positions of the clients at hand (None: all of this process).
        """
        self._held = held
        self._samples, self._kernel, self._seed, self._loop, self._group = held
        self._t, self._purpose = t, purpose
        self._asked: Counter[str] = Counter()
        self._plan: BlendPlan | None = None
        self.present = present
        self._here = here
        self.mine: Any = block(len(present), self._group) if here is None else here
        self.active = present[self.mine]
        self._who = self.active.nonzero()[:, 0]  # positions of those who take part
        whole = len(self._who) == len(self.active)
        self._everybody = whole and (self._group.size == 1 or bool(present.all()))
        self._next = FreshMinibatches(
            self._samples, self._who, lambda number: self.key("grads", number)
        )
        self.gradients = torch.zeros(len(self.active), dtype=torch.float64)
        self.home: Tensor | None = None
        self._meter = Meter(present, [])

    def wrap_with(self, wrap: Wrap) -> Sending:
        """This oracle, inside the wrap."""
        return wrap(self)

    def without_clients(self, absent: Bool[Tensor, " n"]) -> SimulatedOracle:
        """The same oracle without these clients. `absent` marks them among all N."""
        present = self.present & ~absent.to(self.present.device)
        found = SimulatedOracle(self._held, self._t, present, self._purpose)
        found.gradients, found._meter = self.gradients, Meter(present, self.sent)
        return found

    @property
    def sent(self) -> list[Transfer]:
        """What the verbs have sent between clients."""
        return self._meter.sent

    @property
    def widths(self) -> Widths:
        """The number of classes, and of features before the head."""
        return self._kernel.widths

    @property
    def statistics(self) -> RunningStatistics | None:
        """The running statistics in a row; None: there are none."""
        return statistics_of(self._kernel)

    # Questions to single clients.

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i), zero for inactive clients."""
        batch = self._next()
        self._count(self._who, 1)
        points = x if len(self._who) == len(x) else x[self._who]
        g = self._by_client(lambda rows: self._kernel.grad(points[rows], batch[rows]))
        if len(g) == len(x):
            return g
        return torch.zeros_like(x).index_copy(0, self._who, g)

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs a client program once on the rows of active clients in `asked`."""
        call = self._stream("each")
        asked = self._who if who is None else (self.active & who).nonzero()[:, 0]
        whole = len(asked) == len(self.active)
        given = rows if whole else tuple(row[asked] for row in rows)

        def run(
            some: slice | Tensor,
            kernel: Evaluator = self._kernel,
            gradients: Tensor = self.gradients,
        ) -> tuple[Tensor, ...]:
            who = asked[some]
            draw = minibatches_of(
                self._samples, who, lambda number: seeds.key(call, number)
            )
            cost = only(who, self._samples.counts)
            clients = SimulatedClients(
                self._samples, kernel, gradients, who, draw, cost, call
            )
            result = program(clients, *(row[some] for row in given), **options)
            return results_of(program, rows, result)

        twins = self._twins_for(program, len(asked))
        if self._loop and len(asked):
            parts = [self._ask_client(j, run, asked) for j in range(len(asked))]
            results = tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))
        elif len(twins):
            results = self._in_turn(run, twins, len(asked))
        elif self._samples.epochs and "steps" in options and len(asked):
            results = self._in_packs(run, asked)
        else:
            results = run(slice(None))
        if whole:
            return results
        return tuple(
            row.index_copy(0, asked, result)
            for row, result in zip(rows, results, strict=False)
        )

    # Between clients, through a server.

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means over active clients: over all, or over each group."""
        rows = tensor_of(rows)
        shares = shares.to(rows) * self.active
        if groups is not None:
            names = self._names_of(groups, count)
            shares = shares * (groups == names[:, None])
        mean, total = average_rows(self._group, shares, rows.flatten(1))
        if shares.dim() == 1 and not total > 0:
            raise InputError(
                "shares of active clients must add up to more than 0, got "
                f"{float(total):g} from {int(self.present.sum())} active clients."
            )
        down = rows[0] if groups is not None else mean
        self._meter.count_server("average", rows[0].numel(), down.numel())
        if groups is None or len(mean) == 1:
            one = mean if groups is None else mean[0]
            return one.expand(len(rows), *one.shape)
        return mean.index_select(0, torch.searchsorted(names, groups))

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The answers of a coordinator's program on the rows of active clients."""
        given = [tensor_of(row)[self._who] for row in rows]
        up = sum(tensor_of(row)[0].numel() for row in rows)
        if isinstance(self._group, WithCoordinator):
            if server is not None:
                raise InputError(
                    "a program of the coordinator needs more than what the hub "
                    "remembers, so the method cannot run between sites."
                )
            own = self._group.ask_coordinator(program, given, options)
            self._meter.count_server("central", up, sum(row[0].numel() for row in own))
            return None, *own
        counts = [int(part.sum()) for part in self._blocks(self.present)]
        collected = self._group.collect(given, counts)
        memory: Any = None  # only the coordinator has it
        answers: list[Tensor] | str | None = None
        if collected is not None:
            who = self.present.nonzero()[:, 0]
            try:
                memory, *answers = program(server, who, *collected, **options)
                _refuse_missing_rows(program, answers, len(self.present))
            except InputError as error:
                if self._group.size == 1:
                    raise
                answers = str(error)
        everybody = blocks(len(self.present), self._group.size)
        own = self._group.hand_out(answers, everybody)
        if self._here is not None:
            own = [row[self._here] for row in own]
        self._meter.count_server("central", up, sum(row[0].numel() for row in own))
        return memory, *own

    # Between clients, from peer to peer.

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures sum_k weights[i, k] rows[k], repeated; see `types.Oracle`."""
        rows = tensor_of(rows)
        weights = weights.to(rows)
        if not self._everybody and len(weights) == len(self.present):
            weights = of_present(weights, self.present, self.mine.start)
        before, now = rows, self._mix_once(weights, rows)
        for _ in range(exchanges - 1):
            mixed = self._mix_once(weights, now)
            before, now = now, gamma * mixed + (1 - gamma) * before
        return now

    def blended(
        self,
        x: Float[Tensor, "n d"],
        weights: Float[Tensor, "m m"],
        *,
        home: Bool[Tensor, " d"] | None = None,
        release: Release | None = None,
    ) -> Float[Tensor, "n d"]:
        """Blends: for active i, row i is sum_k weights[i, k] g_k(x_i) over active k.

        Columns in `home` do not leave their clients (None: all do). `release` maps the
        gradient of a pair to the row that is sent (None: the gradient itself).
        """
        if self._plan is None or self._plan.weights is not weights:
            self._plan = self._plan_blend(weights)
        shared = x if home is None else x[:, ~home]
        size = shared.shape[1]
        self._meter.count_peers("blended", weights, size, readers=True, back=size)
        everyone = torch.arange(len(x), device=x.device)
        batch = self._samples.minibatch(everyone, self._stream("blended"))
        asks = (weights * self.present[:, None] * self.present != 0).T
        points = shared if self._group.size == 1 else self._fetch(shared, asks)
        # With batch normalisation, samples of different contributors must not be in one
        # batch.
        if home is None and release is None and not self._kernel.couples:
            found = self._blend(points, self._plan, batch)
        else:
            readers = everyone  # whose points these are
            if self._group.size > 1:
                readers = asks.T[:, self.mine].any(1).nonzero()[:, 0]
            found = self._blend_by_pairs(
                points, batch, (x, home), readers, release or as_it_is
            )
        if self._group.size > 1:
            found = return_answers(self._group, found, asks, shared)
        if home is None:
            return found
        # Personal columns have each client's own gradient.
        self._count(self._who, 1)
        g = torch.zeros_like(x)
        g[self._who] = self._kernel.grad(x[self._who], batch[self._who])
        return with_own(found, g, home)

    def compare(
        self,
        x: Float[Tensor, "n d"],
        *,
        samples: int | None = None,
        pairs: Bool[Tensor, "m m"] | None = None,
        home: Bool[Tensor, " d"] | None = None,
        release: tuple[Release, Release] = (as_it_is, as_it_is),
    ) -> Comparison:
        """Distances of pairs of active clients, computed chunk by chunk.

        Columns in `home` do not leave their clients (None: all do). `release` maps the
        gradients of each half to the rows that are sent.
        """
        if samples is not None:
            integer("samples", samples, at_least=2)
        own = x[self._who]
        shared = own if home is None else own[:, ~home]
        n = len(self.present)
        asks = torch.ones(n, n, dtype=torch.bool) if pairs is None else pairs
        asks = asks.to(self.present.device) & self.present[:, None] & self.present
        # The reader's model with its two gradients goes out; a few numbers come back.
        self._meter.count_peers("compare", asks.T, 3 * shared.shape[1], readers=True)
        asks = asks | torch.diag(self.present)  # each client's own gradients
        halves = self._samples.halves(self._who, self._stream("compare"), samples)
        counts = [int(part.sum()) for part in self._blocks(self.present)]
        chunk = self._kernel.chunk(halves[0].index.shape[1], extra=6)
        # A client computes both halves at the model of every reader that asks it.
        readers = asks.sum(0)[self.mine][self._who].cpu()
        self.gradients[self._who.cpu()] += halves[2].cpu().double() * readers
        half_grads: HalfGrads = self._half_grads
        if home is not None:
            half_grads = of_shared_columns(half_grads, own, home)
        asked = ComparisonPlan(half_grads, halves, self._group, counts, chunk, release)
        return compare_pairs(asked, shared, self.present, asks)

    # Parts of the verbs.

    def _mix_once(self, weights: Tensor, rows: Tensor) -> Tensor:
        if len(weights) == len(self.present):
            self._meter.count_peers("mix", weights, rows[0].numel())
            return mix_rows(self._group, weights, rows)
        # Only the clients at hand know their rows, so they count what they send.
        self._meter.count_at_hand("mix", weights, rows[0].numel(), self.mine.start)
        return mix_rows_at_hand(self._group, weights, rows, self.present)

    def _names_of(self, groups: Tensor, count: int | None) -> Tensor:
        """The groups whose sums are sent: in a single process, those that occur."""
        most = len(self.present) if count is None else count
        found = groups.unique()
        if len(found) and not 0 <= int(found[0]) <= int(found[-1]) < most:
            raise InputError(
                f"`groups` must be whole numbers from 0 to {most - 1}, got "
                f"{int(found[0])} to {int(found[-1])}."
            )
        return found if self._group.size == 1 else torch.arange(most).to(found)

    def _stream(self, verb: str) -> int:
        """The key of the random stream for the next call of this verb."""
        number = self._asked[verb]
        self._asked[verb] += 1
        return self.key(verb, number)

    def key(self, verb: str, number: int) -> int:
        """The key of call `number` (from 0) of a verb in this round."""
        return seeds.key(self._seed, self._purpose, self._t, verb, number)

    def _count(self, who: Tensor, times: int) -> None:
        """Counts `times` gradients of a minibatch of each of these clients."""
        counts = self._samples.counts
        if len(who) == len(counts):
            self.gradients += times * counts
        else:
            self.gradients[who.cpu()] += times * counts[who.cpu()]

    def _twins_for(self, program: Program, count: int) -> Sequence[Evaluator]:
        """A kernel for each thread, if the program should run client after client.

        A function that encloses values, such as the watch of private training, may
        change them. So it does not run in several threads.
        """
        if not isinstance(program, FunctionType) or program.__closure__:
            return ()
        return self._kernel.twins(self._samples.width, count)

    def _in_turn(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        twins: Sequence[Evaluator],
        count: int,
    ) -> tuple[Tensor, ...]:
        """The results of client after client, in a thread for each twin kernel.

        Each thread counts gradients by itself, so that no addition is lost.
        """
        own = [(twin, torch.zeros_like(self.gradients)) for twin in twins]

        def of_client(j: int, mine: tuple[Evaluator, Tensor]) -> tuple[Tensor, ...]:
            return run(slice(j, j + 1), *mine)

        parts = in_threads(of_client, count, own)
        for _, gradients in own:
            self.gradients += gradients
        return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))

    def _in_packs(
        self, run: Callable[[Tensor], tuple[Tensor, ...]], asked: Tensor
    ) -> tuple[Tensor, ...]:
        """The results for all asked clients, computed pack by pack; see `epochs`."""
        packs = packs_of(self._samples.batches[asked].tolist())
        order = torch.tensor([j for pack in packs for j in pack], device=asked.device)
        parts = [run(torch.tensor(pack, device=asked.device)) for pack in packs]
        joined = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return tuple(pieces[order.argsort()] for pieces in joined)

    def _by_client(self, ask: Callable[[slice], Tensor]) -> Tensor:
        """The answers for all rows at once; in debug mode, one after the other."""
        if not self._loop or not len(self._who):
            return ask(slice(None))
        return torch.cat([self._ask_client(j, ask) for j in range(len(self._who))])

    def _ask_client(
        self, j: int, ask: Callable[[slice], Answer], asked: Tensor | None = None
    ) -> Answer:
        """The j-th active client's answer; in debug mode, errors name the client."""
        try:
            return ask(slice(j, j + 1))
        except Exception as error:
            if not self._loop:
                raise
            who = self._who if asked is None else asked
            client = self._samples.federation.name_of(int(who[j]))
            raise RuntimeError(f"{client}, round {self._t}: {error}") from error

    def _plan_blend(self, weights: Tensor) -> BlendPlan:
        """The plan for all readers for which a client at hand has a weight."""
        reading, rows = self.present, weights
        if self._group.size > 1:
            asks = weights[:, self.mine] * self.present[:, None] * self.active
            readers = (asks != 0).any(1)
            reading, rows = self.present[readers], weights[readers, self.mine]
        plan = BlendPlan(rows, reading, self.active, steady=self._kernel.compiled)
        plan.weights = weights
        return plan

    def _blend(self, x: Tensor, plan: BlendPlan, batch: Batch) -> Tensor:
        """Parts of blends: row i is what clients at hand contribute to reader i."""
        self.gradients += plan.readers * self._samples.counts
        if self._loop:
            return self._blended_pair_by_pair(x, plan.used, batch)
        g = None
        for readers, columns, share in plan.groups:
            some = blend(batch, columns, share)
            if len(readers) == len(x):
                return self._kernel.grad(x, some)
            g = torch.zeros_like(x) if g is None else g
            g[readers] = self._kernel.grad(x[readers], some)
        return torch.zeros_like(x) if g is None else g

    def _blend_by_pairs(
        self,
        points: Tensor,
        batch: Batch,
        own: tuple[Tensor, Tensor | None],
        readers: Tensor,
        release: Release,
    ) -> Tensor:
        """Blends in shared columns, with a separate message for each pair."""
        assert self._plan is not None  # made before
        self.gradients += self._plan.readers * self._samples.counts
        chunk = self._kernel.chunk(batch.width, extra=3)

        def release_pair(g: Tensor, i: Tensor, k: Tensor) -> Tensor:
            return release(g, readers[i], k + self.mine.start)

        return blended_by_pairs(
            self._kernel.grad, points, self._plan.used, batch, *own, chunk, release_pair
        )

    def _blended_pair_by_pair(self, x: Tensor, used: Tensor, batch: Batch) -> Tensor:
        batch = batch[self._who]
        g = torch.zeros_like(x)
        for j, k in enumerate(self._who.tolist()):
            for i in used[:, k].nonzero()[:, 0].tolist():

                def ask(one: slice, point: Tensor = x[i : i + 1]) -> Tensor:
                    return self._kernel.grad(point, batch[one])

                g[i] += used[i, k] * self._ask_client(j, ask)[0]
        return g

    def _half_grads(
        self, points: Tensor, halves: tuple[Batch, Batch], k: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of both halves of the data of active clients k, at each point."""
        first, second = halves
        grad = self._kernel.grad
        if not self._loop or not len(k):
            return grad(points, first[k]), grad(points, second[k])

        def one_pair(j: int, client: int) -> tuple[Tensor, Tensor]:
            point = points[j : j + 1]
            return self._ask_client(
                client, lambda one: (grad(point, first[one]), grad(point, second[one]))
            )

        a, b = zip(*(one_pair(j, c) for j, c in enumerate(k.tolist())), strict=True)
        return torch.cat(a), torch.cat(b)

    # Rows from other processes.

    def _blocks(self, mask: Tensor) -> Sequence[Tensor]:
        """A mask over all clients, split by process."""
        return mask.split(blocks(len(self.present), self._group.size))

    def _fetch(self, rows: Tensor, wanted: Tensor) -> Tensor:
        """The rows of all clients that any client at hand wants."""
        return fetch_rows(
            self._group, rows, wanted, blocks(len(wanted), self._group.size)
        )


def _refuse_missing_rows(
    program: CentralProgram, answers: Sequence[Tensor], clients: int
) -> None:
    """Refuses answers of a coordinator that have no row for some client."""
    for j, answer in enumerate(answers, 1):
        if len(answer) != clients:
            raise InputError(
                f"answer {j} of `{getattr(program, '__name__', 'the program')}` must "
                f"have a row for each of {clients} clients, got {len(answer)}."
            )

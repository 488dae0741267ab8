"""An oracle for clients that release clipped rows with noise, and record releases.

`PrivateOracle` wraps an oracle. A method asks an oracle by calls, the verbs. Calls that
stay inside a client do not change. The dry run (`foreseen`) finds which rows leave a
client and reveal something new. These rows go through a mechanism:

- `average`, `mix`, `central`: each client releases a row once. The result uses the
  released row even for the client's own part, so it is computed from releases only. If
  clients refuse to take part in a secure sum, the remaining clients add more noise, so
  that no client pays more.
- `blended`: every contributor releases its gradient at every reader's model. Each
  gradient has its own noise, and the contributor pays for each. If the model of a
  reader ever goes to others, the reader also releases its own gradient. Then its model
  is computed from releases only, and costs nothing.
- `compare`: each half of a client's samples gives a gradient with its own noise, so
  that estimates from products of halves stay unbiased. Noise makes norms larger; we
  subtract this.
- `each`: if a method sends losses, or choices made by losses, every mean loss is
  released as soon as the method asks for it, bounded and with noise (`telling`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.blends import Release as Leaves
from ...clients.traffic import Sending, Wrap, Wrapping, peer_links, server_links
from ...collaboration.beliefs import first_half
from ...types import (
    CentralProgram,
    Comparison,
    Message,
    Option,
    Program,
    tensor_of,
)
from ..accounting.accounts import remaining
from ..accounting.ledger import LOSSES, Event, Exchange, Input, Release
from .dry_run.foreseen import Call, CallPlan
from .dry_run.nearest import RESULT, of_own_share, sort_of
from .rows import Mechanism
from .telling import Questions
from .watching import Watch


class PrivateOracle(Wrapping[Sending]):
    """The oracle of a round with private clients; see `types.Oracle`."""

    def __init__(
        self,
        oracle: Sending,
        mechanism: Mechanism,
        foreseen: CallPlan,
        calls: Sequence[Call] | None,
        refs: Float[Tensor, "n k d"],
        names: Int[Tensor, " m"],
        t: int,
        *,
        at_home: bool = False,
        refuses: Bool[Tensor, " m"] | None = None,
    ) -> None:
        """Wraps the oracle of round t.

        Args:
            oracle: the oracle to wrap.
            mechanism: how rows are clipped and get noise.
            foreseen: the planned calls of the method.
            calls: the planned calls of this round in their order; None: see
                `CallPlan.by_key`.
            refs: references of the rows of each client at hand, by place.
            names: identities of all clients, which name their noise.
            t: the round.
            at_home: whether losses stay with their clients in any case.
            refuses: which of all clients have no budget left; None: no client.
        """
        super().__init__(oracle if refuses is None else oracle.without_clients(refuses))
        self._planned = oracle.present
        self._mechanism, self._foreseen = mechanism, foreseen
        self._calls, self._names, self._t = calls, names, t
        self._tells = foreseen.by_key is not None and not at_home
        self._counts: Counter[str] = Counter()
        self.refs, self.events = refs.clone(), list[Event]()
        self._number = -1  # of the last call
        self.watch: Watch | None = None  # follows the method during training
        # Rows of this round, as they were and as they left.
        self._sent: list[tuple[Tensor, int, float, Tensor]] = []
        self._places: dict[int, int] = {}  # of their events, by the id of what left

    def wrap_with(self, wrap: Wrap) -> Sending:
        """The oracle that the wrap makes of this one."""
        return wrap(self)

    def without_clients(self, absent: Bool[Tensor, " n"]) -> Sending:
        """Not needed: absent clients are left out before this oracle wraps others."""
        raise NotImplementedError

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs a client program; results stay with clients, except released losses."""
        if at_home or not self._tells:
            return self._oracle.each(
                program, *rows, who=who, at_home=at_home, **options
            )
        call = self._t, self._counts["each"]
        self._counts["each"] += 1
        names = self._names[self.mine]
        questions = Questions(self._mechanism.for_losses, names, call)
        telling = questions.put_by(program)
        found = self._oracle.each(telling, *rows, who=who, at_home=False, **options)
        self._write_losses(questions.asked)
        return found

    # Through a server.

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means of released rows."""
        others = (shares,) if groups is None else (shares, groups)
        call, secure = self._next("average", (rows,), others), self._mechanism.secure
        if secure and (groups is not None or shares.dim() > 1):
            raise InputError(
                "`privacy.aggregation` secure cannot be used with this method, because "
                "it computes several averages at once."
            )
        assert call.shares is not None  # averages have them
        who = call.shares, self.present, self._planned
        share = self._mechanism.noise_share(*who)
        z = self._release(call, 0, rows, share)
        if call.fresh[0]:
            self._write_average(z, call, share)
        found = self._oracle.average(shares, z, groups, count=count)
        found = found.to(tensor_of(rows).dtype)
        self._keep(call, 0, z, of_own_share(shares, found))
        return found

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The answers of a coordinator's program on rows that clients released."""
        call, given = self._next("central", rows, (), program.__name__), []
        for j, row in enumerate(rows):
            given.append(self._release(call, j, row))
            if call.fresh[j]:
                self._write_row("central", given[j], server_links(self.present))
        server, *found = self._oracle.central(program, server, *given, **options)
        for j, z in enumerate(given):
            self._keep(call, j, z, found[j] if j < len(found) else tensor_of(z))
        return server, *found

    # From peer to peer.

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures of released rows; all exchanges share the same noise."""
        call = self._next("mix", (rows,), (weights,))
        z = self._release(call, 0, rows)
        links = (
            peer_links(weights, self.present)
            if len(weights) == len(weights.T)
            else None
        )
        if links is None or call.secret or self._tells:
            everybody = torch.ones(len(self.present), len(self.present))
            links = peer_links(everybody, self.present, readers=True)
        if call.fresh[0] and len(links):
            if self._foreseen.gossip:
                self._write_gossip(weights, links, exchanges, gamma)
            else:  # later exchanges send what is made of releases of the first one
                self._write_row("mix", z, links)
        found = self._oracle.mix(weights, z, exchanges=exchanges, gamma=gamma)
        self._keep(call, 0, z, found)
        return found

    def blended(
        self,
        x: Float[Tensor, "n d"],
        weights: Float[Tensor, "m m"],
        *,
        home: Bool[Tensor, " d"] | None = None,
        release: Leaves | None = None,
    ) -> Float[Tensor, "n d"]:
        """Blends of released gradients, at models that others may know."""
        shared = x if home is None else x[:, ~home]
        call = self._next("blended", (shared,), (weights,))
        links = peer_links(weights, self.present, readers=True)
        x = self._model(call, x, home, links.flip(1))
        readers = self._readers("blended", links)
        self._write("blended", links, apart=True)
        own = weights.diagonal() != 0
        self._write("blended", peer_links(readers.T * own, self.present))
        leaves = self._pairwise("blended", 0, readers.any(1))
        return self._oracle.blended(x, weights, home=home, release=leaves)

    def compare(
        self,
        x: Float[Tensor, "n d"],
        *,
        samples: int | None = None,
        pairs: Bool[Tensor, "m m"] | None = None,
        home: Bool[Tensor, " d"] | None = None,
        release: tuple[Leaves, Leaves] | None = None,
    ) -> Comparison:
        """Comparisons of released gradients, which everybody sees."""
        n, shared = len(self.present), x if home is None else x[:, ~home]
        asks = torch.ones(n, n, dtype=torch.bool) if pairs is None else pairs
        call = self._next("compare", (shared,), (asks,))
        asks = (asks.to(self.present.device) & self.present[:, None]) & self.present
        asks = asks & ~torch.eye(n, dtype=torch.bool, device=asks.device)
        links = peer_links(asks, self.present)
        self._readers("compare", links)
        x = self._model(call, x, home, links.flip(1))
        told = peer_links(torch.ones_like(asks), self.present, readers=True)
        # Two halves at the own model, and two for each reader: everybody sees them.
        count = 2 * (asks.sum(0) + asks.any(1))
        for many in count[self.present].unique().tolist():
            some = told[count[told[:, 0]] == many]
            self._write("compare", some, math.sqrt(many))
        read = torch.ones(n, dtype=torch.bool, device=asks.device)
        halves = self._pairwise("first", 0, read), self._pairwise("second", 0, read)
        found = self._oracle.compare(
            x, samples=samples, pairs=pairs, home=home, release=halves
        )
        return self._without_noise(found, shared.shape[1])

    # Parts of the verbs.

    def _next(
        self,
        verb: str,
        rows: Sequence[Message],
        others: Sequence[Tensor],
        program: str = "",
    ) -> Call:
        """The planned call that comes next; refuses any other."""
        self._number += 1
        calls, number, found = self._calls, self._number, None
        if calls is None:
            assert self._foreseen.by_key is not None  # it has all calls
            sort = sort_of(verb, rows, others, program, self.refs.shape[2])
            found = self._foreseen.by_key.get((sort, self._counts[sort]))
            self._counts[sort] += 1
        elif number < len(calls) and calls[number].verb == verb:
            found = calls[number]
        if found is None:
            raise InputError(
                f"private training stops: `{verb}` in round {self._t} was not planned, "
                f"but what a method sends must not depend on data."
            )
        if self.watch is not None:
            self.watch.see(found, rows, self.refs)
        return found

    def _stream(self, verb: str, j: int) -> int:
        seed = self._mechanism.seed
        return seeds.key(seed, "privacy", self._t, verb, self._number, j)

    def _release(self, call: Call, j: int, row: Message, share: float = 1.0) -> Message:
        """The rows as they leave their clients."""
        if not call.fresh[j]:
            return row
        assert isinstance(row, Tensor)  # the dry run refuses numbers that are new
        summed = call.verb == "average" and self._mechanism.secure
        later = summed and self._mechanism.source.whole is not None
        for given, *how, z in self._sent:
            # It has left this round.
            if not later and given is row and how == [row._version, share]:
                return z
        names = self._names[self.mine].to(row.device)
        ref = self._ref(call, j)
        stream = self._stream(call.verb, j)
        z = self._mechanism.release(row, ref, stream, names, share, summed=summed)
        z = torch.where(self.active[:, None], z, row)
        self._sent.append((row, row._version, share, z))
        return z

    def _ref(self, call: Call, j: int) -> Tensor | float:
        place = call.slots[j]
        return self.refs[:, place] if place >= 0 else 0.0

    def _keep(self, call: Call, j: int, z: Message, result: Tensor) -> None:
        """Stores the reference for the next row of this call.

        For an absent client, we store only what others know. The row of the client was
        not released, and its mixture contains that row.
        """
        place = call.slots[j]
        if place < 0:
            return
        is_result = self._foreseen.slots[place] == RESULT
        kept = result if is_result else tensor_of(z)
        if kept.shape == self.refs[:, place].shape:
            known = self.active.clone()
            known |= is_result and call.verb in ("average", "central")
            self.refs[:, place] = torch.where(known[:, None], kept, self.refs[:, place])

    def _model(
        self, call: Call, x: Tensor, home: Tensor | None, links: Tensor
    ) -> Tensor:
        """The models at which others answer, released if they reveal something new."""
        if not call.fresh[0]:
            return x
        shared = x if home is None else x[:, ~home]
        z = tensor_of(self._release(call, 0, shared))
        self._keep(call, 0, z, z)
        self._write(call.verb, links)
        if home is None:
            return z
        whole = x.clone()
        whole[:, ~home] = z
        return whole

    def _readers(self, verb: str, links: Tensor) -> Bool[Tensor, "n n"]:
        """[i, k]: whether k may see the model of i; refuses any other pair."""
        readers = self._foreseen.readers.to(self.present.device)
        if not bool(readers[*links.to(readers.device).unbind(1)[::-1]].all()):
            raise InputError(
                f"private training stops: a pair in `{verb}` of round {self._t} was "
                f"not planned, but whom a method asks must not depend on data."
            )
        return readers

    def _pairwise(self, half: str, j: int, read: Bool[Tensor, " n"]) -> Leaves:
        """A function that releases gradients of pairs.

        Own gradients are released only if another client may read them.
        """
        stream, names = self._stream(half, j), self._names

        def leaves(g: Tensor, readers: Tensor, contributors: Tensor) -> Tensor:
            who = names.to(g.device)
            streams = seeds.bits(stream, who[readers], 1)[:, 0]
            sent = who[contributors]
            z = self._mechanism.release(g, 0.0, streams, sent)
            kept = (readers == contributors) & ~read.to(g.device)[readers]
            return torch.where(kept[:, None], g, z)

        return leaves

    def _without_noise(self, seen: Comparison, columns: int) -> Comparison:
        """The comparison, with squared norms minus what noise adds on average."""
        if not self._mechanism.noise:
            return seen
        part = first_half(seen.samples) / seen.samples.clamp(min=1)
        added = (part.square() + (1 - part).square()) * columns
        added = added * self._mechanism.drawn_noise**2 * seen.known.diagonal()
        both = (added[:, None] + added) * seen.known
        pooled = seen.pooled - both.fill_diagonal_(0)
        return seen._replace(pooled=pooled, own_pooled=seen.own_pooled - added)

    def _write(
        self,
        verb: str,
        links: Tensor,
        times: float = 1.0,
        *,
        share: float = 1.0,
        counts: Tensor | None = None,
        apart: bool = False,
    ) -> None:
        """Records a release if anybody receives it; `counts` are shares of a sum."""
        if not len(links):
            return
        given = times * self._mechanism.sensitivity, share * self._mechanism.noise
        release = Release(self._t, verb, links, *given, apart=apart)
        self.events.append(release._replace(summed=counts is not None, shares=counts))

    def _write_average(self, z: Message, call: Call, share: float) -> None:
        """Records rows of an average, and says which noise is due, if any is."""
        links, mechanism, shares = (
            server_links(self.present),
            self._mechanism,
            call.shares,
        )
        assert shares is not None  # averages have them
        if not mechanism.secure:
            self._write_row("average", z, links)
            return
        due = mechanism.due(shares, self.mine.start, share, self._ref(call, 0))
        if due is None:
            counts = shares.double().cpu()[links[:, 0].cpu()]
            self._write("average", links, share=share, counts=counts)
            return
        # Whoever is present, no member pays more than in the smallest allowed sum.
        most = float(remaining(shares, mechanism.colluders).max())
        self._write("average", links, math.sqrt(most), share=share)
        whole = mechanism.source.whole
        if whole is not None and bool(self.active.any()):
            whole.add_due(due)

    def _write_losses(self, asked: int) -> None:
        """Records released mean losses, which every present client may see."""
        links, told = server_links(self.present), self._foreseen.by_key or {}
        if any(call.verb == "mix" for call in told.values()):
            everybody = torch.ones(len(self.present), len(self.present))
            links = peer_links(everybody, self.present, readers=True)
        if asked and len(links):
            mechanism = self._mechanism.for_losses
            given = math.sqrt(asked) * mechanism.sensitivity, mechanism.noise
            self.events.append(Release(self._t, LOSSES, links, *given))

    def _write_row(self, verb: str, z: Message, links: Tensor) -> None:
        """Records rows that left, perhaps to more receivers than before.

        A row that goes to several receivers with the same noise is one release, of all
        clients that send it to anybody.
        """
        if not len(links):
            return
        place = self._places.get(id(z))  # `_sent` has z, so its id stays its own
        if place is None:
            self._places[id(z)] = len(self.events)
            self._write(verb, links)
            return
        event = self.events[place]
        assert isinstance(event, Release)  # as this function wrote it
        both = torch.cat([event.links, links.to(event.links)]).unique(dim=0)
        if len(both) > len(event.links):
            self.events[place] = event._replace(links=both)

    def _write_gossip(
        self, weights: Tensor, links: Tensor, exchanges: int, gamma: float
    ) -> None:
        """Records an input, whose noise travels between neighbours."""
        mechanism, t = self._mechanism, self._t
        who = self.present.clone()
        self.events.append(Input(t, who, mechanism.sensitivity, mechanism.noise))
        for number in range(exchanges):
            factor = gamma if number else 1.0
            self.events.append(Exchange(t, links, weights.detach(), factor))

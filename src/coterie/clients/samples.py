"""Which samples clients use: minibatches, all data, or two random halves of them.

Every draw has a name made of stream and client (`coterie.seeds`), so it does not depend
on other draws. A client draws the same samples whether or not other clients are in its
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import seeds
from ..checks import InputError
from ..collaboration.beliefs import first_half
from ..data.federation import Federation, PartName

_DRAWN_AHEAD = 16
"""The largest number of minibatches of a client program that are drawn in one pass."""

_DRAWN_AT_ONCE = 512
"""The number of samples that are drawn ahead from the start, because it costs nothing.
"""


@dataclass(frozen=True)
class Batch:
    """Samples, of each row or shared by all rows, and their weights."""

    index: Int[Tensor, "n b"] | Int[Tensor, " b"]
    weight: Float[Tensor, "n b"]
    keys: Tensor | None = None
    """Random keys of samples, for masks and crops, in the shape of `index`."""

    @property
    def width(self) -> int:
        """b, the number of samples per row."""
        return self.index.shape[-1]

    def __getitem__(self, rows: Any) -> Batch:
        if self.index.dim() == 1:
            return Batch(self.index, self.weight[rows], self.keys)
        keys = None if self.keys is None else self.keys[rows]
        return Batch(self.index[rows], self.weight[rows], keys)

    def pieces(self, samples: int) -> Iterator[Batch]:
        """Pieces of the batch, one after another, with at most `samples` per row."""
        for first in range(0, self.width, samples):
            some = slice(first, first + samples)
            yield Batch(self.index[..., some], self.weight[:, some])


def batches_of(sizes: Int[Tensor, " n"], batch_size: int) -> Int[Tensor, " n"]:
    """(n,) the number of minibatches in a pass through data of these sizes.

    >>> batches_of(torch.tensor([3, 4, 5]), 4)
    tensor([1, 1, 2])
    """
    if batch_size == 0:
        return torch.ones_like(sizes)
    return torch.div(sizes + (batch_size - 1), batch_size, rounding_mode="floor")


class Measurements(NamedTuple):
    """What clients measure on their own losses before training."""

    curvature: Float[Tensor, " n"]
    weights: Bool[Tensor, " d"]


@dataclass(frozen=True)
class ClientSamples:
    """Minibatches and halves of the training data of a federation."""

    federation: Federation
    batch_size: int  # 0 takes the whole training part
    dtype: torch.dtype  # of the weights of samples
    poisson: bool = False
    """Whether each sample takes part independently, as accountants of privacy assume.

    Its probability is batch_size / size, at most 1. A minibatch has batch_size samples
    in expectation, and weights as if it had exactly this number.
    """
    coins: Callable[[Tensor, Tensor, int], Tensor] = seeds.bits
    """Draws random words for Poisson minibatches; its arguments are streams and
    clients.
    """
    measurements: Measurements | None = None  # None until clients measure them
    randomised: bool = False  # whether models draw masks or crops for each sample
    epochs: bool = False
    """Whether local steps are counted in passes through a client's data; see `epochs`.
    """

    def select(self, who: Int[Tensor, " m"]) -> ClientSamples:
        """The samples of the clients at these positions alone; nothing is copied."""
        measured = self.measurements
        if measured is not None:
            measured = measured._replace(curvature=measured.curvature[who])
        few = replace(self.federation, optima=None).select(who)
        return replace(self, federation=few, measurements=measured)

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
            whole = self.whole(who)
            return [self.with_keys(whole, who, stream) for stream in streams]
        if self.poisson:
            return [self._poisson_minibatch(who, stream) for stream in streams]
        names = self.federation.clients[who]
        keys = torch.tensor(streams, device=names.device)
        keys = keys[:, None] if keys.dim() == 1 else keys
        draws = seeds.integers_below(train.size[who], keys, names, self.batch_size)
        index = train.index[train.start[who][:, None] + draws]
        weight = torch.full(
            index.shape[1:], 1 / self.batch_size, dtype=self.dtype, device=index.device
        )
        pairs = zip(index, streams, strict=True)
        return [self.with_keys(Batch(i, weight), who, stream) for i, stream in pairs]

    def with_keys(
        self, batch: Batch, who: Int[Tensor, " m"], stream: int | Sequence[int]
    ) -> Batch:
        """The batch of these clients, with keys of samples if models draw at random.

        Args:
            batch: a batch in which each client has its own samples.
            who: positions of the clients.
            stream: a key for all clients, or one for each.
        """
        if not self.randomised:
            return batch
        roots = [stream] if isinstance(stream, int) else stream
        names = self.federation.clients[who]
        keys = torch.tensor([seeds.key(root, "layers") for root in roots])
        column = keys.to(names.device).reshape(1, -1)
        return replace(batch, keys=seeds.bits(column, names, batch.width)[0])

    def _poisson_minibatch(self, who: Tensor, stream: int | Sequence[int]) -> Batch:
        """A Poisson minibatch; short rows are filled up with samples of weight zero."""
        train, names = self.federation.train, self.federation.clients[who]
        size, expected = train.size[who], self.expected_sizes[who]
        # One of several processes may have no client that takes part.
        longest = int(size.max()) if len(who) else 0
        keys = torch.as_tensor(stream, device=names.device).reshape(1, -1)
        draws = (self.coins(keys, names, longest)[0] >> 11) + 2**52
        limits = (expected / size * 2.0**53).long()
        chosen = draws < limits[:, None]
        chosen &= torch.arange(longest, device=size.device) < size[:, None]
        count = chosen.sum(1)
        width = max(1, int(count.max())) if len(who) else 1
        filled = torch.arange(width, device=size.device) < count[:, None]
        start = train.start[who].clamp(max=len(train.index) - 1)
        rows, places = chosen.nonzero(as_tuple=True)
        used = train.index[start][:, None].repeat(1, width)
        used.masked_scatter_(filled, train.index[start[rows] + places])
        return Batch(used, filled * (1 / expected)[:, None].to(self.dtype))

    @cached_property
    def expected_sizes(self) -> Float[Tensor, " n"]:
        """(N,) expected number of samples in a Poisson minibatch of each client."""
        return self.expected_of(self.federation.train.size)

    def expected_of(self, sizes: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        """The same for clients with these numbers of training samples."""
        whole = sizes.double()
        return whole.clamp(max=self.batch_size) if self.batch_size else whole

    def whole(self, who: Int[Tensor, " m"], part: PartName = "train") -> Batch:
        """All samples in a part of the clients at these positions."""
        index, mask = self.federation.part(part).rows(who)
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
            stream: names the random orders: one key, or one for each client.
            samples: the number of samples of both halves together (None: all).
        """
        names = self.federation.clients[who]
        few = (self.federation.train.size[who] < 2).nonzero()[:, 0]
        if len(few):
            raise InputError(
                "comparing gradients needs two training samples of every client, but "
                f"{self.federation.name_of(int(who[few[0]]))} has one."
            )
        index, mask = self.federation.train.rows(who)
        keys = torch.as_tensor(stream, device=names.device).reshape(1, -1)
        order = seeds.bits(keys, names, index.shape[1])[0]
        order = order.masked_fill(~mask, torch.iinfo(order.dtype).max).argsort(1)
        index = index.gather(1, order)
        used = mask.sum(1)
        if samples is not None:
            used = used.clamp(max=samples)
        place = torch.arange(index.shape[1], device=index.device)
        first = place < first_half(used)[:, None]
        second = (place < used[:, None]) & ~first
        found = self._half(index, first), self._half(index, second)
        roots = [stream] if isinstance(stream, int) else stream
        a, b = (
            self.with_keys(half, who, [seeds.key(root, number) for root in roots])
            for number, half in enumerate(found)
        )
        return a, b, used.to(self.dtype)

    def _half(self, index: Tensor, chosen: Tensor) -> Batch:
        """The chosen samples of each row, in columns for the longest row."""
        size = chosen.sum(1, keepdim=True)
        order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        order = order[:, : int(size.max()) if len(size) else 0]
        weight = chosen.gather(1, order) / size.to(self.dtype)
        return Batch(index.gather(1, order), weight)

    def class_counts(
        self, who: Int[Tensor, " m"], classes: int
    ) -> Float[Tensor, "m c"]:
        """The number of training samples of each class, for these clients."""
        index, mask = self.federation.train.rows(who)
        found = torch.zeros(len(who), classes, dtype=self.dtype, device=index.device)
        labels = self.federation.targets[index].long()
        return found.scatter_add_(1, labels, mask.to(self.dtype))

    @cached_property
    def width(self) -> int:
        """The number of samples in a minibatch, or in the longest training part."""
        return self.batch_size or int(self.federation.train.size.max())

    @cached_property
    def batches(self) -> Int[Tensor, " n"]:
        """(N,) the number of minibatches in a pass through each client's data."""
        return batches_of(self.federation.train.size, self.batch_size)

    @cached_property
    def counts(self) -> Float[Tensor, " n"]:
        """(N,) number of samples in each client's minibatch, for counts; on the CPU.

        With `epochs`, it is the mean over minibatches, because the last minibatch may
        be smaller.
        """
        if self.batch_size == 0 or self.poisson:
            return self.expected_sizes.cpu()
        if self.epochs:
            return (self.federation.train.size.double() / self.batches).cpu()
        n = len(self.federation)
        return torch.full((n,), self.batch_size, dtype=torch.float64)


class FreshMinibatches:
    """A source of minibatches that draws several ahead if many are asked for."""

    def __init__(
        self,
        samples: ClientSamples,
        who: Tensor,
        stream: Callable[[int], int | list[int]],
    ) -> None:
        self._samples = samples
        self._who = who
        self._stream = stream  # key of minibatch 0, 1, ..., or a key for each client
        self._drawn = 0
        self._ready: list[Batch] = []  # drawn and not used yet, the next one last

    def __call__(self) -> Batch:
        """The next minibatch of each client."""
        if not self._ready:
            # Draws as many as were asked for so far, so that draws become rare.
            # Few numbers cost as much as one.
            values = max(1, len(self._who) * self._samples.batch_size)
            least = min(_DRAWN_AHEAD, max(1, _DRAWN_AT_ONCE // values))
            ahead = max(least, min(self._drawn, _DRAWN_AHEAD))
            numbers = range(self._drawn, self._drawn + ahead)
            streams = [self._stream(number) for number in numbers]
            self._ready = self._samples.minibatches(self._who, streams)[::-1]
            self._drawn += ahead
        return self._ready.pop()

"""Passes through clients' data (epochs), in minibatches without replacement.

In an epoch, client i with n_i samples takes b_i = ceil(n_i / B) steps. Each step uses
the next B samples in a random order, and the last step uses the remaining samples. A
client with fewer than B samples takes one step with all its samples.

Clients that take about equally many steps are computed together, in a pack. A client
that has finished waits for the other clients of its pack. Meanwhile its gradients are
zero, its model does not move, and nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from .. import seeds
from ..types import StepNumbers
from .samples import Batch, ClientSamples

PADDING = 0.2
"""The largest share of a pack's gradients that is computed for clients that wait."""


def packs_of(counts: Sequence[int]) -> list[list[int]]:
    """Positions in `counts`, in groups whose counts differ little; largest first.

    If a group has m positions and the largest count c, its counts add up to at least (1
    - `PADDING`) c m.

    >>> packs_of([9, 2, 10, 2])
    [[2, 0], [1, 3]]
    """
    order = sorted(range(len(counts)), key=lambda place: (-counts[place], place))
    found: list[list[int]] = []
    most = total = 0
    for place in order:
        count = counts[place]
        enough = (1 - PADDING) * most * (len(found[-1]) + 1) if found else 0.0
        if not found or total + count < enough:
            found.append([])
            most, total = count, 0
        found[-1].append(place)
        total += count
    return found


class EpochMinibatches:
    """A source of minibatches without replacement, for clients of one pack."""

    def __init__(
        self,
        samples: ClientSamples,
        who: Int[Tensor, " m"],
        stream: Callable[[int], int | list[int]],
    ) -> None:
        """Prepares the epochs of the clients at positions `who`.

        Args:
            samples: the data of all clients of this process.
            who: positions of the clients.
            stream: the key of epoch 0, 1, ..., or a key for each client.
        """
        self._samples, self._who, self._stream = samples, who, stream
        self._sizes = samples.federation.train.size[who]
        self._batches = samples.batches[who]
        self._drawn = torch.zeros_like(self._batches)  # minibatches of each so far
        self._epoch = torch.full_like(self._batches, -1)
        self._order: Tensor | None = None  # (m, longest) samples in each one's order
        self._questions = torch.zeros_like(self._batches)  # of each so far
        self.moving: Tensor | None = None  # (m,) who takes the step; None: all
        self.inside = False  # whether local steps are being taken
        self.cost = torch.zeros_like(samples.counts)  # (n,) samples of the last draw

    def step_numbers(self, t: int, epochs: int) -> Iterator[StepNumbers]:
        """The numbers of the steps in the next epochs, after the first t epochs."""
        counts = self._batches.tolist() or [0]  # there may be no client here
        least, most = min(counts), max(counts)
        self.inside = True
        for step in range(epochs * most):
            self.moving = None
            if step >= epochs * least:
                self.moving = step < epochs * self._batches
            number = (t * self._batches + step)[:, None].to(self._samples.dtype)
            waits = None if self.moving is None else self.moving[:, None]
            yield StepNumbers(number, waits)
        self.inside, self.moving = False, None

    def __call__(self) -> Batch:
        """The next minibatch of each client; outside of steps, all of its data."""
        if not self.inside or self._samples.batch_size == 0:
            batch, taken = self._samples.whole(self._who), self._sizes
        else:
            batch, taken = self._next()
        batch = self._with_keys(batch)
        if self.moving is not None:
            taken = taken * self.moving
            batch = replace(batch, weight=batch.weight * self.moving[:, None])
        self.cost = torch.zeros_like(self._samples.counts).index_copy(
            0, self._who.cpu(), taken.cpu().double()
        )
        return batch

    def _next(self) -> tuple[Batch, Tensor]:
        """The next minibatch of each client, and the number of samples in it."""
        epoch = torch.div(self._drawn, self._batches, rounding_mode="floor")
        self._shuffle(epoch)
        assert self._order is not None  # by the line above
        size = min(self._samples.batch_size, self._order.shape[1])
        columns = torch.arange(size, device=self._who.device)
        first = (self._drawn - epoch * self._batches) * self._samples.batch_size
        place = first[:, None] + columns
        here = place < self._sizes[:, None]
        index = self._order.gather(1, torch.where(here, place, 0))
        taken = here.sum(1)
        weight = here / taken[:, None].to(self._samples.dtype)
        step = 1 if self.moving is None else self.moving.to(self._drawn)
        self._drawn = self._drawn + step
        return Batch(index, weight), taken

    def _with_keys(self, batch: Batch) -> Batch:
        """The batch, with random keys of samples if models draw random numbers."""
        if not self._samples.randomised or not len(self._who):
            return batch
        numbers, roots = self._questions.tolist(), list[int]()
        for j, number in enumerate(numbers):
            root = self._stream(number)
            roots.append(root if isinstance(root, int) else root[j])
        self._questions += 1 if self.moving is None else self.moving.to(self._drawn)
        return self._samples.with_keys(batch, self._who, roots)

    def _shuffle(self, epoch: Int[Tensor, " m"]) -> None:
        """Draws a new random order for the clients that begin another epoch."""
        new = epoch != self._epoch
        if not bool(new.any()):
            return
        if self._order is None:
            longest = int(self._sizes.max())
            self._order = torch.zeros(
                (len(epoch), longest), dtype=torch.int64, device=epoch.device
            )
        for number in epoch[new].unique().tolist():
            rows = (new & (epoch == number)).nonzero()[:, 0]
            self._order[rows] = self._order_in_epoch(rows, number)
        self._epoch = epoch

    def _order_in_epoch(
        self, rows: Int[Tensor, " r"], epoch: int
    ) -> Int[Tensor, "r _"]:
        """The samples of these clients of the pack, in the random order of an epoch."""
        assert self._order is not None
        federation, who = self._samples.federation, self._who[rows]
        index, mask = federation.train.rows(who)
        keys = torch.as_tensor(self._stream(epoch), device=who.device).reshape(1, -1)
        keys = keys[:, rows] if keys.shape[1] > 1 else keys
        order = seeds.bits(keys, federation.clients[who], index.shape[1])[0]
        order = order.masked_fill(~mask, torch.iinfo(order.dtype).max).argsort(1)
        found = index.gather(1, order)
        short = self._order.shape[1] - found.shape[1]
        return torch.nn.functional.pad(found, (0, short))

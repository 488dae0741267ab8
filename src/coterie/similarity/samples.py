"""Divides the samples of clients: some to choose partners, the others to train."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import checks
from ..data.federation import Federation, Part
from ..models import OBJECTIVES, target_values
from ..seeds import bits, key


class Samples(NamedTuple):
    """The samples of N clients: the first size[i] places of row i; zeros follow."""

    values: Float[Tensor, "n l d"]
    size: Int[Tensor, " n"]

    @property
    def mask(self) -> Tensor:
        """(N, L) whether there is a sample."""
        place = torch.arange(self.values.shape[1], device=self.size.device)
        return place < self.size[:, None]


def split_for_partners(
    federation: Federation, samples: int, *, seed: int = 0
) -> tuple[Federation, Federation]:
    """Two federations: S training samples of each client, and all other samples.

    The first federation is for choosing partners, and the second for training. If a
    sample were in both, partners would seem closer than they are. Theorem 8.4 does not
    allow this.

    Args:
        federation: the federation to divide.
        samples: S, the number of random training samples of every client.
        seed: names the random stream of each client.
    """
    index, mask = _shuffle(federation, seed)
    checks.integer("samples", samples, at_least=1)
    size = federation.train.size
    few = (size <= samples).nonzero()[:, 0]
    if len(few):
        raise checks.InputError(
            f"`samples` must leave every client something to train on, but "
            f"{federation.name_of(int(few[0]))} has {int(size[few[0]])} training "
            f"samples, got {samples}."
        )
    chosen = index[:, :samples]
    start = torch.arange(len(size), device=size.device) * samples
    first = Part(chosen.flatten(), start, torch.full_like(size, samples))
    left, kept = size - samples, index[:, samples:][mask[:, samples:]]
    second = Part(kept, left.cumsum(0) - left, left)
    return replace(federation, train=first), replace(federation, train=second)


def deal_samples(
    federation: Federation, parts: int, *, seed: int = 0
) -> list[Federation]:
    """Federations among which the training samples of every client are divided.

    The sizes of a client's parts differ by at most one.

    Args:
        federation: the federation to divide.
        parts: the number of federations, at most the number of any client's training
            samples.
        seed: names the random stream of each client.
    """
    size = federation.train.size
    few = (size < checks.integer("parts", parts, at_least=1)).nonzero()[:, 0]
    if len(few):
        raise checks.InputError(
            f"every client must have at least {parts} training samples, but "
            f"{federation.name_of(int(few[0]))} has {int(size[few[0]])}."
        )
    index, mask = _shuffle(federation, seed)
    found = []
    for k in range(parts):
        mine, kept = mask[:, k::parts], index[:, k::parts]
        count = mine.sum(1)
        part = Part(kept[mine], count.cumsum(0) - count, count)
        found.append(replace(federation, train=part))
    return found


def _shuffle(federation: Federation, seed: int) -> tuple[Tensor, Tensor]:
    """(N, L) each client's training samples in random order, and their mask."""
    everybody = torch.arange(len(federation), device=federation.train.size.device)
    index, mask = federation.train.rows(everybody)
    order = bits(key(seed, "partners"), federation.clients, index.shape[1])
    order = order.masked_fill(~mask, torch.iinfo(order.dtype).max).argsort(1)
    return index.gather(1, order), mask


def samples_of(
    federation: Federation, *, labelled: bool = True, scale: float | None = None
) -> Samples:
    """The training samples of every client: features followed by the response.

    For classes, the response has a column for each class, with 1 for the right class.
    Otherwise the response is the numbers themselves. Features are not scaled: bring
    them to a common scale first.

    Args:
        federation: the clients.
        labelled: False takes features only, so labels are not needed. But then clients
            that label the same features differently look equal.
        scale: a factor for the response; with None, response and features have equal
            total variance.
    """
    index, mask = _shuffle(federation, seed=0)
    values = federation.features[index].flatten(2)
    if not values.is_floating_point():
        values = values.to(torch.float32)
    if not labelled:
        return Samples(values * mask[..., None], federation.train.size)
    response = federation.targets[index]
    if OBJECTIVES[federation.task].labelled:
        known = target_values(federation.task, federation.outputs)
        response = torch.nn.functional.one_hot(response.long(), known)
    response = response.reshape(*mask.shape, -1).to(values)
    if scale is None:
        spread = [rows[mask].double().var(0).sum() for rows in (values, response)]
        scale = float((spread[0] / spread[1]).sqrt()) if min(spread) > 0 else 1.0
    values = torch.cat([values, checks.number("scale", scale) * response], 2)
    return Samples(values * mask[..., None], federation.train.size)

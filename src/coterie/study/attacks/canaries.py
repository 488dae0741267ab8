"""Canaries: for each, an attacker guesses whether it is in the data.

For the unit client, every client is a canary. It uses either its own training and
validation data or replacements. Replacements have negated and larger features, so that
a model learns the opposite from them. For the unit sample, canaries replace some
training samples of each client. The features of a canary are noise, and its target is
replaced: by the next class, or by a quantity two standard deviations larger. If
features are ids of words, only the target is replaced. A coin decides for each canary
whether it is in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.kernels import Kernel
from ...clients.samples import Batch
from ...data.federation import Federation, part
from ...models.objectives import target_values
from ...privacy.attacks import confidence_of

_OF_EACH, _OF_ALL = 50, 2000
"""The largest numbers of canaries: per client, and in total. One canary for each client
is always allowed. """

_RIDGE = 0.1
"""The ridge penalty of the least squares that separate a client's canaries."""

_LOUD = 2.0
"""The features of canaries are larger than those of samples by this factor."""

_SHARE = 4
"""At most one in `_SHARE` training samples is a canary, so that most data stay."""


@dataclass(frozen=True)
class Canaries:
    """c canaries, by their clients, and samples that stand for them."""

    federation: Federation  # with samples of canaries behind the others
    clients: Int[Tensor, " c"]  # positions, in ascending order
    inside: Int[Tensor, "c l"]  # positions of a canary's samples
    outside: Int[Tensor, "c k"]  # of those that replace them; empty: there are none
    mask: Bool[Tensor, "c l"]  # which of these exist
    rest: Int[Tensor, " r"]  # training samples that are always there
    owners: Int[Tensor, " r"]  # their clients
    held_out: Int[Tensor, " v"]  # instead of validation samples; empty: these stay

    def federation_with(self, members: Bool[Tensor, " c"]) -> Federation:
        """The data with these canaries, and without the others."""
        index, owner = [self.rest], [self.owners]
        sides = ((self.inside, members), (self.outside, ~members))
        for samples, chosen in sides:
            used = self.mask[:, : samples.shape[1]] & chosen[:, None]
            index.append(samples[used])
            owner.append(self.clients[:, None].expand(samples.shape)[used])
        n, validation = len(self.federation), self.federation.validation
        train = part(torch.cat(index), torch.cat(owner), n)
        if len(self.held_out):
            own = torch.arange(n).to(validation.size).repeat_interleave(validation.size)
            index_ = validation.index.where(members[own], self.held_out)
            validation = validation._replace(index=index_)
        return replace(self.federation, train=train, validation=validation)

    def directions(
        self, kernel: Kernel, start: Float[Tensor, " d"]
    ) -> Float[Tensor, "c d"]:
        """Directions in which canaries move gradients at the first model."""
        points = start.expand(len(self.clients), -1)
        g = kernel.grad(points, self._batch(self.inside, start))
        if self.outside.shape[1]:
            g = g - kernel.grad(points, self._batch(self.outside, start))
        u = g / g.norm(dim=1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)
        for one in self.clients.unique().tolist():
            mine = u[self.clients == one]
            if len(mine) > 1:  # separated by least squares
                among = mine @ mine.T + _RIDGE * torch.eye(len(mine)).to(u)
                u[self.clients == one] = torch.linalg.solve(among, mine)
        return u

    def others_confidence(
        self, kernel: Kernel, x: Float[Tensor, "n d"]
    ) -> Float[Tensor, " c"]:
        """How sure the mean model of all other clients is of each canary's samples."""
        others = (x.sum(0) - x) / (len(x) - 1)
        points = others[self.clients]
        sure = confidence_of(kernel.loss(points, self._batch(self.inside, x)))
        if self.outside.shape[1]:
            loss = kernel.loss(points, self._batch(self.outside, x))
            sure = sure - confidence_of(loss)
        return sure.cpu()

    def losses_at(
        self, kernel: Kernel, point: Float[Tensor, " d"], *, held_out: bool
    ) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
        """Mean losses of each canary's client at a model, with and without the canary.

        Other canaries of the same client have weight 1/2, because the attacker does not
        know whether they are in the data.
        """
        if self.outside.shape[1]:  # all samples of a client, or others for them
            everybody = torch.ones_like(self.clients, dtype=torch.bool)
            inside, outside = (
                self._mean_losses(
                    kernel, point, self.federation_with(members), held_out
                )
                for members in (everybody, ~everybody)
            )
            return inside[0], outside[0]
        none = torch.zeros_like(self.clients, dtype=torch.bool)
        mean, size = self._mean_losses(
            kernel, point, self.federation_with(none), held_out
        )
        if held_out:  # a canary is a training sample
            return mean[self.clients], mean[self.clients]
        points = point.expand(len(self.clients), -1)
        own = kernel.loss(points, self._batch(self.inside, point)).double()
        half = own.new_zeros(2, len(size)).index_add_(
            1, self.clients, torch.stack([own, torch.ones_like(own)]) / 2
        )
        total, count = torch.stack([mean.nan_to_num(0.0) * size, size]) + half
        total, count = total[self.clients] - own / 2, count[self.clients] - 0.5
        return (total + own) / (count + 1), total / count.clamp(min=0.5)

    def _mean_losses(
        self,
        kernel: Kernel,
        point: Float[Tensor, " d"],
        federation: Federation,
        held_out: bool,
    ) -> tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]]:
        """Mean losses of all clients' samples at a model, and their number."""
        some = federation.validation if held_out else federation.train
        index, mask = some.rows(torch.arange(len(federation)).to(some.size))
        size = some.size.double()
        weight = mask.to(point) / size.clamp(min=1).to(point)[:, None]
        points = point.expand(len(index), -1)
        return kernel.loss(points, Batch(index, weight)).double(), size

    def _batch(self, samples: Tensor, like: Tensor) -> Batch:
        weight = self.mask.to(like)
        return Batch(samples, weight / weight.sum(1, keepdim=True))


def canaries_of(federation: Federation, unit: str, seed: int) -> Canaries:
    """The canaries of a federation, for the unit client or sample."""
    everybody = torch.arange(len(federation), device=federation.train.size.device)
    index, mask = federation.train.rows(everybody)
    if unit == "client":
        made, outside = _with_others(federation, index, mask, _opposite)
        nobody, validation = index.new_empty(0), federation.validation.index
        all_of_it = torch.ones_like(validation, dtype=torch.bool)
        made, held_out = _with_others(made, validation, all_of_it, _opposite)
        samples = index, outside, mask, nobody, nobody
        return Canaries(made, everybody, *samples, held_out)
    chosen = _choose_samples(mask, seed)
    if int(chosen.sum()) < 2:
        raise InputError(
            f"an audit of the unit sample needs clients with at least {_SHARE} "
            f"training samples, the largest has {int(mask.sum(1).max())}."
        )
    rng = seeds.generator(seed, "audit", "features")
    made, places = _with_others(federation, index, chosen, partial(_noise, rng))
    clients = everybody[:, None].expand(index.shape)
    inside, rest = places[chosen][:, None], mask & ~chosen
    none = inside[:, :0]
    one = torch.ones_like(inside, dtype=torch.bool)
    others = index[rest], clients[rest], index.new_empty(0)
    return Canaries(made, clients[chosen], inside, none, one, *others)


def _choose_samples(mask: Bool[Tensor, "n l"], seed: int) -> Bool[Tensor, "n l"]:
    """Which samples of each client are replaced by canaries, at random."""
    rng = seeds.generator(seed, "audit", "canaries")
    draws = torch.rand(mask.shape, generator=rng).to(mask.device)
    order = draws.masked_fill(~mask, 2.0).argsort(1).argsort(1)
    most = max(1, min(_OF_EACH, _OF_ALL // len(mask)))
    return order < (mask.sum(1) // _SHARE).clamp(max=most)[:, None]


def _opposite(
    features: Tensor, targets: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """Samples that teach the opposite."""
    return -_LOUD * features, targets


def _noise(
    rng: torch.Generator, features: Tensor, targets: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """Samples that resemble no other."""
    noise = torch.randn(features.shape, generator=rng).to(features)
    return _LOUD * features.std() * noise, other


def _with_others(
    federation: Federation,
    index: Int[Tensor, "*n"],
    used: Bool[Tensor, "*n"],
    made: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Federation, Int[Tensor, "*n"]]:
    """The federation with samples that replace these, and their positions."""
    features, targets = (
        federation.features[index[used]],
        federation.targets[index[used]],
    )
    classes = target_values(federation.task, federation.outputs)
    other = (
        (targets + 1) % classes if classes else targets + 2 * federation.targets.std(0)
    )
    if features.is_floating_point():
        features, other = made(features, targets, other)
    places = torch.zeros_like(index)
    count = len(federation.targets)
    places[used] = count + torch.arange(len(targets), device=index.device)
    federation = replace(
        federation,
        features=torch.cat([federation.features, features]),
        targets=torch.cat([federation.targets, other.to(federation.targets.dtype)]),
        raw=None,
    )
    return federation, places

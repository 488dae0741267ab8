"""Chooses partners by mean features, to which clients add noise before they send them.

A sample z has features phi(z), with a norm of at most 1. Client i divides S of its
samples into two halves of h samples, and releases the mean of the first half

    a_i = 1 / h sum_{z in the first} phi(z) + N(0, s^2 I),

and in the same way the mean b_i of the other half. It releases nothing else. The halves
share neither samples nor noise. So <a_i - a_j, b_i - b_j> is an unbiased estimate of
|E phi(z_i) - E phi(z_j)|^2, whatever the noise. The difference between the halves shows
how precise the estimate is.

Removing one sample moves (a_i, b_i) by at most 1 / h. Replacing all data of a client
moves (a_i, b_i) by at most 2 sqrt(2). Weights made of released means cost nothing more.
We do not offer `sliced` distances, which use quantiles, or transport plans, because
they are not means of features.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ... import seeds
from ...checks import InputError, one_of
from ...data.federation import Federation
from ...similarity.distances import Distances, from_halves, squares_of
from ...similarity.partners import weights_from
from ...similarity.samples import samples_of
from ...types import SERVER
from ..accounting.ledger import Release
from .noise import SEEDED, NoiseSource, SecretStream

PARTNERS = "partners"
"""The `verb` of a release of mean features, because clients send them by no verb."""

_FREQUENCIES = 64
"""Fewer than without noise, because every coordinate gets noise."""

_BANDWIDTH = 0.5
"""For features with a mean square of 1, divided by sqrt(d)."""

PAIRS = 200
"""With more clients, we do not keep receipts for pairs: N^2 numbers are too many."""

_GRID = 2.0**-30
"""Means are whole multiples of this step."""

_BLOCK = 2**20
"""Number of features that we compute at once."""


def _shrink(z: Tensor, most: float) -> Tensor:
    """The samples, scaled so that norms are at most 1; a norm of `most` becomes 1."""
    return z / z.norm(dim=-1, keepdim=True).clamp(min=most)


def _moments(z: Tensor) -> Tensor:
    one = torch.ones_like(z[..., :1])
    return squares_of(_shrink(torch.cat([one, z], -1), 2.0))


def _waves(z: Tensor) -> Tensor:
    rng = seeds.generator(0, "private frequencies")
    w = torch.randn(z.shape[-1], _FREQUENCIES, generator=rng, dtype=torch.float64)
    angle = z @ (w / _BANDWIDTH).to(z)
    return torch.cat([angle.cos(), angle.sin()], -1) / math.sqrt(_FREQUENCIES)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "means": lambda z: _shrink(z, 2.0),
    "moments": _moments,
    "mmd": _waves,
}
"""Features of samples, with norms of at most 1, by the names that studies use."""


class PartnerMechanism(NamedTuple):
    """How clients release mean features, for the choice of partners."""

    unit: str  # client or sample
    noise: float  # standard deviation, in units of the sensitivity
    seed: int  # names the noise
    secret: bytes | None = None  # for the key of the noise; None: it follows the seed

    def __repr__(self) -> str:
        source = "a seed" if self.secret is None else "secret"
        return f"<PartnerMechanism: unit {self.unit}, noise {self.noise:g}, {source}>"

    def private_means(
        self, name: str, federation: Federation, samples: int
    ) -> Float[Tensor, "n 2 p"]:
        """The means of both halves of each client, as they leave the client.

        Args:
            name: the name of the features; with the prefix `unlabelled_`, without
                targets.
            federation: the clients and their data.
            samples: S; a client with fewer samples uses all of them.
        """
        plain = name.removeprefix("unlabelled_")
        features = FEATURES[one_of("weights", plain, FEATURES)]
        # Scales must not depend on data, because they would reveal it.
        d = math.prod(federation.features.shape[1:])
        known = samples_of(federation, labelled=plain == name, scale=math.sqrt(d))
        half = known.size.clamp(max=samples) // 2
        if not int(half.min()):
            raise InputError(
                "every client must have two training samples for two halves, but "
                f"{federation.name_of(int(half.argmin()))} has "
                f"{int(known.size[half.argmin()])}."
            )
        values = known.values[:, : 2 * int(half.max())].double() / math.sqrt(d)
        place = torch.arange(values.shape[1], device=half.device)
        first = place < half[:, None]
        both = torch.stack([first, (place < 2 * half[:, None]) & ~first], 1)
        share = both / half[:, None, None].to(values)
        # The last digits may differ between processors, but noise must not.
        means = (_sum_features(values, share, features) / _GRID).round() * _GRID
        if self.noise:
            moves = 1 / half.to(means)
            if self.unit == "client":
                moves = torch.full_like(moves, 2 * math.sqrt(2))
            scale = self.noise * (moves + math.sqrt(means[0].numel()) * _GRID)
            rows = means.flatten(1)
            self._noise_for(name, samples, rows).add(
                rows,
                seeds.key(self.seed, "noise", name, samples),
                federation.clients,
                scale,
                mu=1 / self.noise,
                reach=math.sqrt(2) / float(scale.min()),
            )
            means = rows.view(means.shape)
        return means

    def _noise_for(self, name: str, samples: int, rows: Tensor) -> NoiseSource:
        """The source of noise; secret noise repeats only for exactly the same means."""
        if self.secret is None:
            return SEEDED
        names = self.unit, self.noise, self.seed, name, samples, tuple(rows.shape)
        asked = repr(names).encode()
        told = asked + rows.cpu().contiguous().numpy().tobytes()
        return NoiseSource(SecretStream(hmac.digest(self.secret, told, "sha256")))

    def releases(self, clients: int) -> tuple[Release, ...]:
        """The releases for the ledger, as if everybody received the means."""
        who = torch.arange(clients)
        links = torch.cartesian_prod(who, torch.arange(SERVER, clients))
        links = links[links[:, 0] != links[:, 1]]
        if clients > PAIRS:  # a server and one of the others stand for all
            ends = torch.stack([who.roll(1), torch.full_like(who, SERVER)], 1)
            links = torch.stack([who.repeat_interleave(2), ends.flatten()], 1)
        return (Release(0, PARTNERS, links, 1.0, self.noise),)


def _sum_features(
    values: Float[Tensor, "n l d"],
    share: Float[Tensor, "n 2 l"],
    features: Callable[[Tensor], Tensor],
) -> Float[Tensor, "n 2 p"]:
    """Sums of features, weighted by these shares, for some clients at a time.

    If a sample is so large that its features overflow, the sample counts as nothing.
    """

    def finite(z: Tensor) -> Tensor:
        phi = features(z)
        return torch.where(phi.isfinite().all(-1, keepdim=True), phi, 0.0)

    width = features(values[:1, :1]).shape[-1]
    few = max(1, _BLOCK // (values.shape[1] * width))
    blocks = zip(values.split(few), share.split(few), strict=True)
    return torch.cat([some @ finite(z) for z, some in blocks])


def private_distances(told: Float[Tensor, "n 2 p"]) -> Distances:
    """Unbiased squared distances of mean features, and their errors.

    Let S_i be the covariance of the mean of a half. Then s^2 = tr (S_i + S_j)^2 in
    `from_halves`. The noise of clients may be very different. On average, t_i = |a_i -
    b_i|^2 / 2 is tr S_i, so we take s = sqrt(r) (t_i + t_j), where 1 / r is the number
    of directions in which halves differ. The mean squared cosine between the
    differences a_i - b_i of two clients estimates r.

    Args:
        told: both halves of each client.
    """
    a, b = told.double().unbind(1)
    product = a @ b.T
    own = product.diagonal()
    squared = own[:, None] + own - product - product.T
    apart = ~torch.eye(len(a), dtype=torch.bool, device=a.device)
    away = a - b
    length = away.norm(dim=1, keepdim=True)
    unit = away / length.clamp(min=1e-300)
    share = (
        (unit @ unit.T).square()[apart].mean() if len(a) > 1 else product.new_ones(())
    )
    trace = length[:, 0].square() / 2
    spread = share.sqrt() * (trace[:, None] + trace)
    return from_halves(squared, spread, torch.ones_like(apart))


def private_weights(
    name: str,
    federation: Federation,
    samples: int,
    choosing: PartnerMechanism,
    threshold: float | None = None,
) -> Float[Tensor, "n n"]:
    """Like `similarity.estimated_weights`, but from released means with noise.

    Args:
        name: one of `FEATURES`; with the prefix `unlabelled_`, without targets.
        federation: the clients and their data.
        samples: S; a client with fewer samples uses all of them.
        choosing: how clients release their means.
        threshold: limit of squared distances; None: we look for a gap.

    Raises:
        InputError: if there is no gap, or too much noise to see a gap.
    """
    told = choosing.private_means(name, federation, samples)
    try:
        return weights_from(private_distances(told), threshold)
    except InputError as error:
        raise InputError(
            f"{error} With [privacy], noise also hides gaps: `privacy.partners` is the "
            "share of epsilon that may be spent here. (Clients have already released "
            "their means for this, and the ledger of these data counts it.)"
        ) from None

"""Losses that leave a client: bounded, and with noise on their mean.

A client's loss is the mean over its m samples. Each sample counts between 0 and C:

    f = (1 / m) sum_b min(max(loss_b, 0), C),    released as  f + N(0, deviation^2).

Replacing all data of a client moves f by at most C, and removing one sample by at most
C / m, where m is public. A model that overflows has the loss C.

Some methods ask for the losses of all samples, and find the error of the mean from the
spread of the losses. Such a method gets m made-up numbers. We make them from the
released mean, which is also their mean. Their variance accounts for noise and for
samples between 0 and C:

    variance = m deviation^2 + f (C - f).

The second term is the largest variance of numbers between 0 and C with the mean f
(Bhatia, Davis, "A better bound on the variance", American Mathematical Monthly, 2000).
So a method that uses standard errors is as careful as the noise requires.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor

from ....checks import InputError
from ....data.federation import Federation
from ....models import target_values
from ...accounting.gaussian import refuse_clip
from ..noise import normals


def usual_loss_clip(federation: Federation) -> float:
    """The loss of a model that knows nothing: log of the classes, or 1 for numbers."""
    values = target_values(federation.task, federation.outputs)
    return math.log(values) if values > 1 else 1.0


def refuse_loss_clip(name: str, value: float, noise: float | None) -> None:
    """Refuses wrong bounds of losses; infinity needs a run without noise."""
    refuse_clip(name, value)
    if value == math.inf and noise != 0:
        raise InputError(f"`{name}` must be finite if there is noise, got inf.")


def bounded_mean(losses: Float[Tensor, "n b"], most: float) -> Float[Tensor, " n"]:
    """Means over the samples of each client, NaN if it has none.

    Args:
        losses: the losses of samples, NaN where a client has fewer samples than others.
        most: C.
    """
    return losses.clamp(0, most).nanmean(1) if losses.shape[1] else losses.sum(1) / 0


def as_samples(
    mean: Float[Tensor, " n"],
    losses: Float[Tensor, "n b"],
    deviation: Float[Tensor, " n"],
    most: float,
    streams: int | Int[Tensor, " n"],
    clients: Int[Tensor, " n"],
) -> Float[Tensor, "n b"]:
    """Numbers in place of the losses of samples, with these released means.

    Args:
        mean: the released means.
        losses: used only for the number of samples of each client.
        deviation: the standard deviation of the noise on each mean.
        most: C.
        streams: names the draws.
        clients: identities of the clients.
    """
    if not losses.shape[1]:
        return losses
    known = ~losses.isnan()
    m = known.sum(1).clamp(min=1)
    inside = mean.clamp(0, most)
    variance = m * deviation**2 + inside * (most - inside)
    away = normals(streams, clients, losses.shape[1], losses.dtype) * known
    away = away - (away.sum(1) / m)[:, None]
    return (mean[:, None] + variance.sqrt()[:, None] * away).where(known, losses)

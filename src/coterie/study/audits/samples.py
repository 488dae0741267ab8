"""Residuals of private gradients of single samples, against a loop over samples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...clients.kernels import Kernel
from ...clients.samples import Batch
from ...data.federation import Federation
from ...privacy.audits import Residuals
from ...privacy.per_sample import PrivateSimulation
from ...types import Clients

_DRAWS, _SAMPLES, _AT_ONCE = 8, 4000, 64
"""Answers of each client, samples of all that are looked at, and those at a time."""


def whole_gradient(clients: Clients, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """A client program: the gradient of all training samples."""
    return clients.whole().grad(x)


def residuals_of_samples(
    clients: PrivateSimulation,
    kernel: Kernel,
    federation: Federation,
    x: Float[Tensor, "n d"],
    clip: float,
    noise: float,
) -> Residuals:
    """What private answers about all samples of a client differ by from a loop.

    Args:
        clients: who answer privately.
        kernel: that evaluates models, without clipping.
        federation: with the samples of these clients.
        x: models at which they are asked; twice, as they are and moved by noise.
        clip: C, the length to which gradients are cut.
        noise: standard deviation of the noise in a sum of samples.
    """
    found, sizes = Residuals(), federation.train.size
    found.promised(clip, noise)
    # Where many models have the same gradient at the start, moved ones do not.
    rng = torch.Generator().manual_seed(0)
    x = x + 0.1 * torch.randn(x.shape, generator=rng).to(x)
    order = sizes.argsort()
    some = order[: max(1, int((sizes[order].cumsum(0) <= _SAMPLES).sum()))].tolist()
    sums = [_cut_sums(kernel, federation, x[i], i, clip) for i in some]
    for t in range(1, _DRAWS + 1):
        # For use at home: nothing leaves, and nothing is counted.
        (z,) = clients.at(t, purpose="use").each(whole_gradient, x)
        for i, (clean, whole) in zip(some, sums, strict=True):
            size = int(sizes[i])
            excess = (whole - clean) / size
            found.add_clean(clean[None] / size, excess[None], z[i][None], 1 / size)
    return found


def _cut_sums(
    kernel: Kernel, federation: Federation, x: Tensor, client: int, clip: float
) -> tuple[Tensor, Tensor]:
    """Sums of the client's gradients at x, sample by sample: cut, and as they are."""
    train = federation.train
    first, size = int(train.start[client]), int(train.size[client])
    cut = whole = torch.zeros_like(x, dtype=torch.float64)
    for index in train.index[first : first + size].split(_AT_ONCE):
        one = torch.ones(len(index), 1).to(x)
        g = kernel.grad(x.expand(len(index), -1), Batch(index[:, None], one)).double()
        lengths = g.norm(dim=1, keepdim=True).clamp(min=1e-300)
        cut = cut + (g * (clip / lengths).clamp(max=1)).sum(0)
        whole = whole + g.sum(0)
    return cut, whole

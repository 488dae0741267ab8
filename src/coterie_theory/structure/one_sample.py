"""A subspace from a single noiseless sample of each client.

One sample y_i = <w_i, x_i> does not determine the model of a client. But all samples
together can determine the subspace. A subspace U is admissible if every client has a
model in U that fits its sample and has norm at most `cap`:

    U is admissible  <=>  |U' x_i| >= |y_i| / cap  for all i            (Lemma 9.4.1)

With enough clients, only subspaces near the true subspace are admissible (Theorem 9.3).
Let the columns of A be a basis of U, not necessarily orthonormal. The loss

    (1/N) sum_i [y_i^2 - cap^2 x_i' A (A' A)^-1 A' x_i]_+^2

is zero only for admissible subspaces. L-BFGS minimises this loss from a few random
starts.

References:
    Even, PhD thesis, 2024, chapter 9, section 9.4, tel-04877971.

Differences: the thesis calls this setting noisy, but the statement is for noiseless
samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, finite, integer, number
from coterie.optim.heads import refuse_rank

from .tasks import Tasks, warn_of_few

_ZERO = 1e-12
"""The largest loss that may come from rounding; targets are about 1."""


class Subspace(NamedTuple):
    """A subspace, and how far it is from admissible."""

    basis: Float[Tensor, "d r"]
    loss: float  # 0: every client has a model of norm at most cap that fits


def admissibility(basis: Float[Tensor, "d r"], data: Tasks) -> Float[Tensor, " n"]:
    """The norm of each client's shortest head v_i that fits all of its samples.

    The norm is infinite if no head fits. U is delta-admissible if delta times every
    norm is at most cap. For one sample, the norm is |y_i| / |U' x_i|.
    """
    if data.loss != "squared":
        raise InputError(f"`data` must have the loss 'squared', got {data.loss!r}.")
    there = data.weights > 0
    z = torch.where(there[:, :, None], data.features @ basis, 0)
    y = torch.where(there, data.targets, 0)[:, :, None]
    head = torch.linalg.pinv(z) @ y
    off = (z @ head - y).norm(dim=(1, 2)) > 1e-6 * y.norm(dim=(1, 2))
    return torch.where(off, torch.inf, head[:, :, 0].norm(dim=1))


def one_sample_subspace(
    data: Tasks,
    *,
    rank: int,
    cap: float,
    rng: torch.Generator,
    starts: int = 20,
) -> Subspace:
    """An (almost) admissible subspace for clients with one noiseless sample each.

    Args:
        data: one sample of every client, with squared errors.
        rank: dimensions of the subspace.
        cap: the largest norm of the clients' models.
        rng: the generator of the starts.
        starts: the largest number of starts; the first with an admissible result ends
            the search.
    """
    n, d = data.shape
    refuse_rank(rank, n, d)
    number("cap", cap, above=0)
    integer("starts", starts, at_least=1)
    if data.loss != "squared" or data.features.shape[1] != 1:
        raise InputError(
            "`data` must have one sample per client and the loss 'squared', got "
            f"{data.features.shape[1]} samples and the loss {data.loss!r}."
        )
    finite("features", data.features)
    what = f"a subspace of {rank} dimensions from one sample each (Theorem 9.3)"
    warn_of_few(data, what, samples=rank * d, each=1)
    x, y = data.features[:, 0].double(), data.targets[:, 0].double()
    runs: list[Subspace] = []
    for _ in range(starts):
        start = torch.randn(d, rank, generator=rng, dtype=torch.float64).to(x.device)
        runs.append(_descend(start, x / y.abs().mean(), y / y.abs().mean(), cap))
        if runs[-1].loss <= _ZERO:
            break
    best = min(runs, key=lambda run: run.loss)
    return Subspace(best.basis.to(data.features), best.loss)


def _descend(start: Tensor, x: Tensor, y: Tensor, cap: float) -> Subspace:
    a = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [a],
        max_iter=500,
        tolerance_grad=0,
        tolerance_change=1e-18,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def violation() -> Tensor:
        inside = torch.linalg.qr(a)[0].T @ x.T  # (r, N)
        excess = y.square() - cap**2 * inside.square().sum(0)
        return excess.clamp(min=0).square().mean()

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = violation()
        value.backward()
        return value

    optimiser.step(closure)
    with torch.no_grad():
        return Subspace(torch.linalg.qr(a)[0], float(violation()))

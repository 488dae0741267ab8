"""Private gradients of single samples: their residuals, and canaries among them."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...clients.kernels import Kernel
from ...clients.samples import Batch
from ...data.federation import Federation, part
from ...privacy.attacks import TRIALS, Decisions, Residuals, decisions
from ...privacy.mechanisms.per_sample import PrivateSimulation
from ...types import Clients
from ..setup import Setup, simulation_of
from .canaries import Canaries

_DRAWS, _SAMPLES, _AT_ONCE = 8, 4000, 64
"""The number of answers of each client, the most samples that are used in total, and
the number of samples at a time. """

_NUMBERS, _MOST, _FEWEST = 4_000_000, 50_000_000, 256
"""The most numbers in answers about canaries, at a time and in total, and the smallest
number of canaries. """

_ANSWERS = 32
"""The most answers about one canary."""

_LOUD = 100.0
"""The factor for the features of canaries: so large that their gradients are cut."""

_EASY = 0.3
"""The number of answers about one canary is chosen to give this mu, if possible."""


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
    """Differences between clients' private answers and sums computed by a plain loop.

    Args:
        clients: the clients, which answer privately.
        kernel: evaluates models, without clipping.
        federation: the samples of these clients.
        x: a model for each client; it is moved at random before the client answers.
        clip: C, the length to which gradients are cut.
        noise: standard deviation of the noise in a sum of samples.
    """
    found, sizes = Residuals(), federation.train.size
    found.expect(clip, noise)
    # Many models may have the same gradient at the start, but moved ones do not.
    rng = torch.Generator().manual_seed(0)
    x = x + 0.1 * torch.randn(x.shape, generator=rng).to(x)
    order = sizes.argsort()
    some = order[: max(1, int((sizes[order].cumsum(0) <= _SAMPLES).sum()))].tolist()
    sums = [_cut_sums(kernel, federation, x[i], i, clip) for i in some]
    for t in range(1, _DRAWS + 1):
        # With the purpose `use`, nothing leaves, and nothing is counted.
        (z,) = clients.at(t, purpose="use").each(whole_gradient, x)
        for i, (clean, whole) in zip(some, sums, strict=True):
            size = int(sizes[i])
            excess = (whole - clean) / size
            found.add_clean(clean[None] / size, excess[None], z[i][None], 1 / size)
    return found


def _cut_sums(
    kernel: Kernel, federation: Federation, x: Tensor, client: int, clip: float
) -> tuple[Tensor, Tensor]:
    """Sums of the client's per-sample gradients at x: each cut to `clip`, and uncut."""
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


def sample_canaries(
    setup: Setup, canaries: Canaries, clip: float, noise: float
) -> Decisions:
    """How well an observer of a client's answers tells whether the client has a sample.

    Made-up clients have one ordinary sample each, and every second client also has a
    canary. They are asked for the gradient of all their samples. The auditor subtracts
    the gradient of the ordinary sample. It knows the canary's gradient g, and computes
    the log likelihood ratio of R answers. With the canary this ratio is N(mu^2/2,
    mu^2), and without it N(-mu^2/2, mu^2), where mu = sqrt(R) |g| / (C noise) and g is
    cut to C.

    Args:
        setup: says how clients answer.
        canaries: canaries for the unit sample.
        clip: C, the length to which gradients are cut.
        noise: standard deviation of the noise in a sum, in units of C.
    """
    study, columns = setup.study, setup.x.shape[1]
    assert study.privacy is not None  # only called with noise
    trials = max(_FEWEST, min(TRIALS, _MOST // (2 * columns)))
    most = max(1, min(_ANSWERS, _MOST // (2 * trials * columns)))
    releases = min(max(1, math.ceil((_EASY * noise) ** 2)), most)
    pairs = max(1, min(trials, _NUMBERS // (2 * columns)))
    rng = torch.Generator().manual_seed(0)
    x = setup.x[0] + 0.1 * torch.randn(columns, generator=rng).to(setup.x)
    pair = Batch(torch.arange(2, device=x.device)[:, None], torch.ones(2, 1).to(x))
    for loud in (_LOUD, -_LOUD, 1.0):  # of some models, one is so sure that g is 0
        made = _made_up_clients(canaries, pairs, loud)
        simulation = simulation_of(study, made, setup.module, setup.seed)
        g = simulation.kernel.grad(x.expand(2, -1), pair).double()
        if bool(g[1].any()):
            break
    usual, canary = g * (clip / g.norm(dim=1, keepdim=True).clamp(min=clip))
    mu = math.sqrt(releases) * float(canary.norm()) / (clip * noise)
    clients = PrivateSimulation(
        simulation,
        clip=clip,
        noise=noise,
        name="audit",
        noise_source=study.privacy.noise_source,
    )
    points, ratios, t = x.expand(len(made), -1), list[Tensor](), 0
    sizes = made.train.size.to(x.device)[:, None]
    while sum(map(len, ratios)) < 2 * trials:
        ratio = torch.zeros(len(made), dtype=torch.float64)
        for _ in range(releases):
            t += 1
            (z,) = clients.at(t, purpose="use").each(whole_gradient, points)
            away = z.double() * sizes - usual - canary / 2
            ratio += (away @ canary).cpu() / (clip * noise) ** 2
        ratios.append(ratio)
    inside, outside = (torch.cat([r[k::2] for r in ratios]) for k in (0, 1))
    return decisions(inside, outside, mu)


def _made_up_clients(canaries: Canaries, pairs: int, loud: float) -> Federation:
    """Pairs of clients: one has a sample and a canary, and the other only the sample.

    There are `pairs` of them; `loud` multiplies the canary's features.
    """
    made = canaries.federation
    which = torch.stack([canaries.rest[0], canaries.inside[0, 0]])
    features = made.features[which]
    if features.is_floating_point():
        features = features * features.new_tensor([1.0, loud]).view(
            2, *[1] * (features.dim() - 1)
        )
    n = 2 * pairs
    evens = torch.arange(0, n, 2)
    index = torch.cat([torch.zeros(n).long(), torch.ones(pairs).long()])
    train = part(index, torch.cat([torch.arange(n), evens]), n)
    nothing = part(index[:0], index[:0], n)
    return Federation(
        made.name,
        features,
        made.targets[which],
        made.task,
        made.outputs,
        train,
        nothing,
        nothing,
        torch.arange(n),
    )

"""An audit of one client's data in one private run.

Some of the client's training samples are canaries. For each canary, a coin that the
attacker does not see decides whether it stays in the data. Then the client answers as
it would in training, and the attacker guesses which canaries stayed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from coterie import seeds
from coterie.checks import InputError, integer
from coterie.clients.kernels import Kernel
from coterie.clients.samples import Batch
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation, part
from coterie.models import ravel
from coterie.privacy.accounting.subsampled import sampled_epsilon
from coterie.privacy.attacks.membership import Audit, audit_scores, scores_along
from coterie.privacy.mechanisms.per_sample import PrivateSimulation
from coterie.types import ClientsInRounds


def audit_client(
    federation: Federation,
    module: nn.Module,
    client: int,
    *,
    clip: float,
    noise: float,
    batch_size: int,
    rounds: int,
    lr: float = 0.1,
    canaries: int = 100,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
) -> Audit:
    """The epsilon that an attack on one client proves, and the promised bound.

    Args:
        federation: the data.
        module: architecture and first model.
        client: the position of the audited client.
        clip: the largest length of a sample's gradient; longer gradients are shortened.
        noise: the noise, in units of `clip`.
        batch_size: the expected number of samples of a minibatch.
        rounds: the number of steps along private gradients.
        lr: step size.
        canaries: the number of training samples about which the attack guesses.
        delta: the delta of the promised bound.
        confidence: the probability that the lower bound holds.
        seed: the seed of coins, minibatches and noise.
    """
    own = federation.only(client)
    size = int(own.train.size[0])
    integer("canaries", canaries, at_least=2)
    if canaries >= size:
        raise InputError(
            f"`canaries` must be fewer than the {size} training samples of "
            f"{own.name_of(0)}, got {canaries}."
        )
    chosen, members = _coins(size, canaries, seed)
    stays = torch.ones(size, dtype=torch.bool)
    stays[chosen[~members]] = False
    train = own.train.index
    nobody = torch.zeros(int(stays.sum()), dtype=torch.long)
    kept = replace(own, train=part(train[stays.to(train.device)].cpu(), nobody, 1))
    plain = Simulation(kept, module, batch_size=batch_size, seed=seed)
    clients = PrivateSimulation(plain, clip=clip, noise=noise)
    x = ravel(module).to(plain.dtype)[None]
    points, answers = collect_releases(clients, x, rounds=rounds, lr=lr)
    along = directions(plain.kernel, points[:, 0], train[chosen])
    rate = float(clients.batch_counts[0] / clients.sizes[0])
    upper = sampled_epsilon(noise, delta=delta, rate=rate, steps=rounds)
    scores = canary_scores(answers[:, 0], along)
    return audit_scores(
        scores, members, upper=upper, delta=delta, confidence=confidence
    )


def _coins(size: int, canaries: int, seed: int) -> tuple[Tensor, Tensor]:
    """The positions of the canaries, and whether each of them stays in the data."""
    rng = seeds.generator(seed, "audit")
    chosen = torch.randperm(size, generator=rng)[:canaries]
    return chosen, torch.rand(canaries, generator=rng) < 0.5


def collect_releases(
    clients: ClientsInRounds, x: Float[Tensor, "n d"], *, rounds: int, lr: float = 0.0
) -> tuple[Float[Tensor, "t n d"], Float[Tensor, "t n d"]]:
    """Models and the clients' answers to them, in rounds of steps along the answers.

    Args:
        clients: the audited clients.
        x: the first models; an auditor may choose any models.
        rounds: the number of rounds.
        lr: step size; with 0, all rounds ask about the same models.
    """
    points, answers = [], []
    for t in range(1, rounds + 1):
        g = clients.at(t).grads(x)
        points.append(x)
        answers.append(g)
        x = x - lr * g
    return torch.stack(points), torch.stack(answers)


def directions(
    kernel: Kernel, points: Float[Tensor, "t d"], canaries: Int[Tensor, " m"]
) -> Float[Tensor, "t m d"]:
    """Unit gradients of each canary at each model.

    Args:
        kernel: the kernel of the audited clients, without clipping.
        points: models of one client.
        canaries: the positions of the canaries among the samples.
    """
    m = len(canaries)
    weight = torch.ones(m, 1, dtype=points.dtype, device=points.device)
    batch = Batch(canaries[:, None], weight)
    g = torch.stack([kernel.grad(point.expand(m, -1), batch) for point in points])
    return g / g.norm(dim=2, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny)


def canary_scores(
    answers: Float[Tensor, "t d"], canaries: Float[Tensor, "t m d"]
) -> dict[str, Float[Tensor, " m"]]:
    """For each attack, scores of canaries: higher if a canary seems to have stayed."""
    return scores_along(torch.einsum("td,tmd->tm", answers, canaries))

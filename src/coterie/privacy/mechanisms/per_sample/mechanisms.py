"""Noise for questions to single samples, and their entries in the ledger."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from .... import seeds
from ....checks import InputError
from ....clients.groups import KnowsSizes, blocks
from ....clients.oracles import LocalClients
from ....clients.simulation import Simulation
from ....types import SERVER, Program
from ...accounting.ledger import LOSSES, Ledger, Release
from ..noise import SEEDED, NoiseSource
from .losses import as_samples, bounded_mean

Links = list[tuple[float, Tensor]]


@dataclass(frozen=True)
class SampleMechanism:
    """How gradients and losses of samples get noise."""

    clip: float
    noise: float
    seed: int  # of this run alone, as `LocalClients` has it
    names: Int[Tensor, " m"]  # of all N clients
    rates: Float64[Tensor, " m"]
    expected: Float64[Tensor, " n"]  # samples in a minibatch of the clients at hand
    sizes: Float64[Tensor, " n"]
    first: int  # position of the first client at hand
    loss_clip: float = math.inf  # the most that the loss of a sample counts
    held_out_noise: float = 0.0  # instead of `noise`, for validation samples
    source: NoiseSource = SEEDED
    known: dict[tuple[bytes, bool], Links] = field(default_factory=dict)

    def links(self, who: Int[Tensor, " n"], *, sampled: bool) -> Links:
        """Links of these clients to the server, for every rate of sampling."""
        asked = who.numpy().tobytes(), sampled
        if asked not in self.known:
            rates = self.rates[who] if sampled else torch.ones(len(who)).double()
            self.known[asked] = [
                (rate, torch.stack([some, torch.full_like(some, SERVER)], 1))
                for rate in rates.unique().tolist()
                for some in [who[rates == rate]]
            ]
        return self.known[asked]

    def add_noise(
        self, g: Tensor, keys: list[int], who: Tensor, samples: Tensor
    ) -> Float[Tensor, "n d"]:
        """Gradients with noise, added in place.

        Args:
            g: clipped gradients, each a mean over samples.
            keys: one for all gradients, or one for each.
            who: positions of their clients among the clients at hand.
            samples: the number of samples in each mean.
        """
        if not self.noise or not len(g):
            return g
        names = self.names[who + self.first]
        streams = torch.tensor(keys, device=g.device).expand(len(who))
        scale = self.noise * self.clip / samples[who]
        reach = float(self.sizes.max()) / self.noise  # if all samples take part
        given = g, streams, names, scale
        return self.source.add(*given, mu=1 / self.noise, reach=reach)

    def loss_noise(self, *, held_out: bool) -> float:
        """Noise on q times a sum of losses, in units of their bound."""
        return self.held_out_noise if held_out else self.noise

    def add_noise_to_losses(
        self,
        losses: Tensor,
        keys: tuple[list[int], list[int]],
        who: Tensor,
        *,
        held_out: bool,
    ) -> tuple[Tensor, Tensor]:
        """Mean losses (n,) with noise, and numbers (n, b) with these means.

        Args:
            losses: bounded losses of all training or validation samples.
            keys: the keys of the noise on means, and of the spread of numbers.
            who: positions among the clients at hand.
            held_out: whether these are validation samples.
        """
        mean = bounded_mean(losses, self.loss_clip)
        multiple = self.loss_noise(held_out=held_out)
        if not multiple or not len(mean):
            return mean, losses
        names = self.names[who + self.first]
        noise, spread = (
            torch.tensor(key, device=mean.device).expand(len(who)) for key in keys
        )
        used = self.rates[who.cpu() + self.first].to(mean) * (~losses.isnan()).sum(1)
        deviation = multiple * self.loss_clip / used  # infinite without samples
        hidden, mu = mean[:, None].clone(), float(self.rates.min()) / multiple
        reach = float(self.sizes.max()) / multiple
        given = hidden, noise, names, deviation
        mean = self.source.add(*given, mu=mu, reach=reach)[:, 0]
        numbers = as_samples(mean, losses, deviation, self.loss_clip, spread, names)
        return mean, numbers


def mechanism_of(
    simulation: Simulation,
    held: LocalClients,
    bounds: tuple[float, float],
    noises: tuple[float, float],
    source: NoiseSource,
) -> SampleMechanism:
    """The mechanism for the clients of a simulation, with Poisson minibatches.

    Args:
        simulation: the clients.
        held: the same clients with a kernel that clips.
        bounds: the bounds of gradients and of losses.
        noises: the noise for training samples and for validation losses, in units of
            the bounds.
        source: the source of the noise.
    """
    group, clients = simulation.group, len(simulation)
    counts = blocks(clients, group.size)
    sizes, expected = held.samples.federation.train.size, held.samples.expected_sizes
    if isinstance(group, KnowsSizes):  # clients that cannot be asked now
        names = torch.arange(clients)
        rates = held.samples.expected_of(group.sizes) / group.sizes
    else:
        names = group.join(held.samples.federation.clients, counts)
        rates = group.join(expected / sizes, counts).cpu()
    return SampleMechanism(
        bounds[0],
        noises[0],
        held.seed,
        names,
        rates,
        expected,
        sizes.double(),
        sum(counts[: group.rank]),
        bounds[1],
        noises[1],
        source,
    )


@dataclass(frozen=True)
class QuestionLog:
    """Names the noise of questions, and enters them in a ledger."""

    mechanism: SampleMechanism
    ledger: Ledger | None
    rounds: list[int]  # one for all clients, or one for each
    purpose: str

    def keys(
        self, verb: str, call: int, question: int, *, reader: int | None = None
    ) -> list[int]:
        """Keys of the noise of a question; every `reader` gets its own keys."""
        names = (self.mechanism.seed, "privacy", self.purpose)
        asked = (verb, call, question) + (() if reader is None else (reader,))
        return [seeds.key(*names, t, *asked) for t in self.rounds]

    def enter_links(self, verb: str, links: Tensor, *, sampled: bool) -> None:
        """Enters answers to several readers about the same samples."""
        clip, noise = self.mechanism.clip, self.mechanism.noise
        rates = self.mechanism.rates[links[:, 0]]
        rates = rates if sampled else torch.ones_like(rates)
        for rate in rates.unique().tolist():
            some = links[rates == rate]
            deviation = noise * clip if noise else 0.0
            assert self.ledger is not None
            self.ledger.append(
                Release(self.rounds[0], verb, some, clip, deviation, rate, apart=True)
            )

    def enter(self, verb: str, who: Tensor, *, times: int, sampled: bool) -> None:
        """Notes that clients were asked for gradients.

        Args:
            verb: the verb of the questions.
            who: positions among all clients.
            times: number of questions about the same samples.
            sampled: whether they are about a minibatch, and not about all data.
        """
        if self.ledger is None or not times:
            return
        clip, noise = self.mechanism.clip, self.mechanism.noise
        sensitivity, deviation = clip * math.sqrt(times), noise * clip if noise else 0.0
        rounds = torch.tensor(self.rounds).expand(len(who))
        for t in sorted(set(self.rounds)):
            here = who if len(self.rounds) == 1 else who[rounds == t].unique()
            for rate, links in self.mechanism.links(here, sampled=sampled):
                self.ledger.append(
                    Release(t, verb, links, sensitivity, deviation, rate)
                )

    def enter_losses(self, who: Tensor, *, times: int, held_out: bool) -> None:
        """Notes that clients were asked for mean losses over all samples.

        Each question releases q times a sum of losses, with the noise of a minibatch.

        Args:
            who: positions among all clients.
            times: number of questions.
            held_out: whether they are about validation samples.
        """
        if self.ledger is None:
            return
        clip, t = self.mechanism.loss_clip, self.rounds[0]
        noise = self.mechanism.loss_noise(held_out=held_out)
        deviation = noise * clip if noise else 0.0
        for rate, links in self.mechanism.links(who, sampled=True):
            rest = links, rate * clip, deviation
            release = Release(t, LOSSES, *rest, held_out=held_out)
            for _ in range(times):
                self.ledger.append(release)


def program_label(program: Program) -> str:
    """The name of a client program, and its method."""
    inner = program.func if isinstance(program, functools.partial) else program
    module = inner.__module__.rpartition(".")[2]
    return f"{inner.__name__} of {module}"


def refuse(who: str, what: str) -> NoReturn:
    """Refuses a question whose answer cannot get noise."""
    raise InputError(
        f"{who} asks for {what}, which privacy of unit 'sample' cannot make private: "
        "it adds noise only to a client's own gradients and losses."
    )

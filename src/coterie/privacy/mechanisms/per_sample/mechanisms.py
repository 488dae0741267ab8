"""Which noise a question gets, and how it enters the ledger."""

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
from ....clients.groups import blocks
from ....clients.oracles import Held
from ....clients.simulation import Simulation
from ....types import SERVER, Program
from ...accounting.ledger import LOSSES, Ledger, Release
from ..noise import SEEDED, NoiseSource
from .losses import as_samples, bounded_mean

Links = list[tuple[float, Tensor]]


@dataclass(frozen=True)
class SampleMechanism:
    """What is added to whose gradients."""

    clip: float
    noise: float
    seed: int  # of this run alone, as `Held` has it
    names: Int[Tensor, " m"]  # of all N clients
    rates: Float64[Tensor, " m"]
    expected: Float64[Tensor, " n"]  # samples in a minibatch of the clients at hand
    sizes: Float64[Tensor, " n"]
    first: int  # position of the first client at hand
    loss_clip: float = math.inf  # what a sample's loss counts for at most
    held_out_noise: float = 0.0  # in place of `noise`, for losses of validation samples
    source: NoiseSource = SEEDED
    known: dict[tuple[bytes, bool], Links] = field(default_factory=dict)

    def links(self, who: Int[Tensor, " n"], *, sampled: bool) -> Links:
        """Links of clients at these of all positions, for every rate of sampling."""
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
        """Gradients, means of so many samples of clients at hand, with noise in place.

        Args:
            g: clipped gradients.
            keys: one for all, or one for each of them.
            who: their positions among the clients at hand.
            samples: of how many each is the mean.
        """
        if not self.noise or not len(g):
            return g
        names = self.names[who + self.first]
        streams = torch.tensor(keys, device=g.device).expand(len(who))
        scale = self.noise * self.clip / samples[who]
        reach = float(self.sizes.max()) / self.noise  # where all samples take part
        given = g, streams, names, scale
        return self.source.add(*given, mu=1 / self.noise, reach=reach)

    def loss_noise(self, *, held_out: bool) -> float:
        """Noise of the q-th part of a sum of losses, in units of their bound."""
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
            losses: bounded ones, of all samples in a part of the clients at hand.
            keys: of the noise, and of what the numbers differ by.
            who: their positions among the clients at hand.
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
        deviation = multiple * self.loss_clip / used  # infinite where nobody has any
        hidden, mu = mean[:, None].clone(), float(self.rates.min()) / multiple
        reach = float(self.sizes.max()) / multiple
        given = hidden, noise, names, deviation
        mean = self.source.add(*given, mu=mu, reach=reach)[:, 0]
        numbers = as_samples(mean, losses, deviation, self.loss_clip, spread, names)
        return mean, numbers


def mechanism_of(
    simulation: Simulation,
    held: Held,
    bounds: tuple[float, float],
    noises: tuple[float, float],
    source: NoiseSource,
) -> SampleMechanism:
    """Of the clients of a simulation, who are held with Poisson minibatches.

    Args:
        simulation: the clients.
        held: the same, with what bounds their answers.
        bounds: of gradients, and of losses.
        noises: in units of these, and of losses of validation samples.
        source: of the noise.
    """
    group, clients = simulation.group, len(simulation)
    counts = blocks(clients, group.size)
    sizes, expected = held.samples.federation.train.size, held.samples.expected
    return SampleMechanism(
        bounds[0],
        noises[0],
        held.seed,
        group.join(held.samples.federation.clients, counts),
        group.join(expected / sizes, counts).cpu(),
        expected,
        sizes.double(),
        sum(counts[: group.rank]),
        bounds[1],
        noises[1],
        source,
    )


@dataclass(frozen=True)
class QuestionLog:
    """Which noise a question gets, and where it is written down."""

    mechanism: SampleMechanism
    ledger: Ledger | None
    rounds: list[int]  # of all clients, or of each
    purpose: str

    def keys(
        self, verb: str, call: int, question: int, *, reader: int | None = None
    ) -> list[int]:
        """Names of the noise of a question, of one reader where several ask it."""
        names = (self.mechanism.seed, "privacy", self.purpose)
        asked = (verb, call, question) + (() if reader is None else (reader,))
        return [seeds.key(*names, t, *asked) for t in self.rounds]

    def enter_links(self, verb: str, links: Tensor, *, sampled: bool) -> None:
        """Writes down answers to several readers about the same samples."""
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
        """Writes down that the clients at these of all positions were asked.

        Args:
            verb: in which.
            who: of all clients.
            times: how often, about the same samples.
            sampled: about a minibatch, and not about all data.
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
        """Writes down that these were asked for mean losses over all their samples.

        Of a sum of losses, the q-th part is released with the noise of a minibatch.

        Args:
            who: of all clients.
            times: how often.
            held_out: about validation samples.
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
    """A client program by its name and the method that it is of."""
    inner = program.func if isinstance(program, functools.partial) else program
    module = inner.__module__.rpartition(".")[2]
    return f"{inner.__name__} of {module}"


def refuse(who: str, what: str) -> NoReturn:
    """Says that somebody asks for what no noise is added to."""
    raise InputError(
        f"{who} asks for {what}, which privacy of unit 'sample' cannot make private: "
        "it bounds a client's own gradients and losses alone, and adds noise to them."
    )

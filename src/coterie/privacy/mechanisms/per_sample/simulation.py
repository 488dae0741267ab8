"""Clients that hide every single sample in all their gradients (DP-SGD in any method).

A method may ask two questions about data. For gradients, each answer is the mean of the
samples' gradients, clipped to the length C, plus noise,

    (1 / B) (sum_b min(1, C / |g_b|) g_b + N(0, (s C)^2 I)),

where every sample takes part with chance q = B / size on its own (Poisson) and B is the
expected size of a minibatch. For losses over all m training or validation samples, the
answer is their mean, with as much noise as in a minibatch of q m samples,

    (1 / (q m)) (q sum_b min(loss_b, C') + N(0, (s C')^2)).

Clients compute everything that they send from these answers. So even all other clients
and a server together learn no more than the answers reveal. We refuse questions without
such bounds.

The ledger has one release for every minibatch, towards all receivers of the client's
rows. If R questions use the same minibatch, they are one release with sqrt(R) times the
sensitivity. It is public which samples are for training and which are for validation.
So releases about one part reveal nothing of the other part. Questions for a client's
own use (fine-tuning at the end) have noise too. Their answers stay with the client and
do not enter the ledger.

Reference:
    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang, "Deep learning with
    differential privacy", CCS 2016, arXiv 1607.00133.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from .... import seeds
from ....checks import InputError
from ....clients.blends import Release as Leaves
from ....clients.blends import after
from ....clients.oracles import LocalClients, SimulatedOracle
from ....clients.programs import task_clients
from ....clients.simulation import Simulation
from ....clients.traffic import Sending, Wrap, Wrapping, peer_links, server_links
from ....clients.wrappers import PersonalOracle
from ....collaboration.beliefs import first_half
from ....types import Comparison, Option, Oracle, Program
from ...accounting.gaussian import refuse_clip, refuse_noise
from ...accounting.ledger import Ledger
from ..noise import source_of
from .clients import IndexedClients, PrivateClients, Uses
from .clipping import ClippedKernel
from .losses import refuse_loss_clip, usual_loss_clip
from .mechanisms import QuestionLog, mechanism_of, program_label, refuse


class PrivateSimulation:
    """Simulated clients that answer privately; see `coterie.types.ClientsInRounds`."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        clip: float,
        noise: float,
        loss_clip: float | None = None,
        held_out_noise: float | None = None,
        name: str = "",
        noise_source: str = "seed",
    ) -> None:
        """Wraps a simulation.

        Args:
            simulation: the clients.
            clip: C, the largest length of every sample's gradient.
            noise: s, standard deviation of the noise in units of C.
            loss_clip: C', the most that every sample's loss counts; None: log of the
                number of classes, or 1; infinity if `clip` is infinite.
            held_out_noise: s for losses of validation samples, which have their own
                account; None: as for training samples.
            name: the name of the run. With noise from a seed, every run on the same
                data needs its own name, or another seed. Otherwise noise cancels in
                differences between runs, and the same samples take part, so accounts do
                not add up.
            noise_source: "seed" for simulations, where noise and minibatches are
                functions of the seed; "system" for real data, where both are secret.
        """
        refuse_clip("clip", clip)
        refuse_noise("noise", noise)
        held_out_noise = noise if held_out_noise is None else held_out_noise
        refuse_noise("held_out_noise", held_out_noise)
        if noise and clip == math.inf:
            raise InputError("`clip` must be finite if there is noise, got inf.")
        if simulation.samples.epochs:
            raise InputError(
                "clients that take `epochs` cannot hide single samples, because the "
                "accounting needs minibatches that are drawn independently: use "
                "the clients without `in_epochs()`, and `steps`."
            )
        federation = simulation.samples.federation
        for empty in (federation.train.size == 0).nonzero()[:1, 0].tolist():
            raise InputError(
                "every client must have training samples for private training, but "
                f"{federation.name_of(empty)} has none."
            )
        if loss_clip is None:
            usual = usual_loss_clip(simulation.federation)
            loss_clip = math.inf if clip == math.inf else usual
        refuse_loss_clip("loss_clip", loss_clip, max(noise, held_out_noise))
        self._simulation = simulation
        source = source_of(noise_source)
        self._held = LocalClients(
            replace(simulation.samples, poisson=True, coins=source.bits),
            ClippedKernel(simulation.kernel, clip, loss_clip),
            seeds.key(simulation.seed, "run", name) if name else simulation.seed,
            simulation.loop,
            simulation.group,
        )
        bounds, noises = (clip, loss_clip), (noise, held_out_noise)
        self._mechanism = mechanism_of(simulation, self._held, bounds, noises, source)
        self.ledger = Ledger(len(simulation))

    def __len__(self) -> int:
        return len(self._simulation)

    def __repr__(self) -> str:
        clip, noise = self._mechanism.clip, self._mechanism.noise
        return f"<{self._simulation!r}, gradients cut to {clip:g}, noise {noise:g}>"

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t, where the `active` clients take part (None: all)."""
        present = self._simulation.present(active)
        oracle = SimulatedOracle(self._held, t, present, purpose)
        home = self._simulation.home
        log = QuestionLog(self._mechanism, self._entering(purpose), [t], purpose)
        private = PerSampleOracle(oracle, log)
        return private if home is None else PersonalOracle(private, home)

    def task_clients(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> PrivateClients:
        """The clients at these positions, each in its own round."""
        if verb not in ("grads", "each"):
            refuse("a method without waiting", f"`{verb}` in time")
        samples, kernel, seed, *_ = self._held
        clients = task_clients(samples, kernel, seed, who, rounds, verb)
        log = QuestionLog(self._mechanism, self.ledger, list(rounds), "step")

        def of_call(number: int) -> PrivateClients:
            asked, call = clients.call(number), (verb, number)
            program_label = "a task of the method"
            return PrivateClients(asked, log, call, program_label, calls=of_call)

        return of_call(0)

    def wrap_double(self, double: Sending, ledger: Ledger) -> PerSampleOracle:
        """A double with the questions of these clients, a clip of 1 and no noise."""
        mechanism = replace(
            self._mechanism, clip=1.0, noise=0.0, loss_clip=1.0, held_out_noise=0.0
        )
        return PerSampleOracle(double, QuestionLog(mechanism, ledger, [0], "step"))

    def _entering(self, purpose: str) -> Ledger | None:
        return None if purpose == "use" else self.ledger

    @property
    def names(self) -> Int[Tensor, " n"]:
        """The identities of the clients, on the CPU."""
        return self._simulation.names

    @property
    def batch_counts(self) -> Float[Tensor, " n"]:
        """Samples of each client's minibatch in expectation, for counting."""
        return self._held.samples.counts

    @property
    def sizes(self) -> Float64[Tensor, " n"]:
        """Training samples of each client, on the CPU."""
        return self._simulation.sizes

    def width(self, clients: int) -> int:
        """How many clients to ask at once, out of this number."""
        return clients


class PerSampleOracle(Wrapping[Sending]):
    """An oracle whose clients answer privately; see `coterie.types.Oracle`."""

    def __init__(self, oracle: Sending, log: QuestionLog) -> None:
        super().__init__(oracle)
        self._log = log
        self._asked: Counter[str] = Counter()

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is client i's private gradient at x_i, zero for inactive clients."""
        call = self._call("grads")
        g = self._oracle.grads(x)
        self._log.enter("grads", self._everybody(), times=1, sampled=True)
        who = self.active.nonzero()[:, 0]
        keys, mechanism = self._log.keys("grads", call, 0), self._log.mechanism
        if len(who) == len(g):
            return mechanism.add_noise(g, keys, who, mechanism.expected)
        return g.index_copy(
            0, who, mechanism.add_noise(g[who], keys, who, mechanism.expected)
        )

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs a client program, to which clients answer privately."""
        call, used = self._call("each"), Uses()

        def private(
            clients: IndexedClients, *rows: Tensor, **options: Option
        ) -> Tensor | tuple[Tensor, ...]:
            used.begin()
            asked = PrivateClients(
                clients, self._log, ("each", call), program_label(program), used
            )
            return program(asked, *rows, **options)

        found = self._oracle.each(private, *rows, who=who, at_home=at_home, **options)
        for use in used.found:
            who = self._everybody()
            self._log.enter("each", who, times=use.times, sampled=use.sampled)
            self._log.enter_losses(who, times=use.losses, held_out=use.held_out)
        return found

    def blended(
        self,
        x: Float[Tensor, "n d"],
        weights: Float[Tensor, "m m"],
        *,
        home: Bool[Tensor, " d"] | None = None,
        release: Leaves | None = None,
    ) -> Float[Tensor, "n d"]:
        """Blends of private gradients, with separate noise for each pair."""
        if home is not None:
            refuse("the method", "gradients at others' models with columns at home")
        call = self._call("blended")
        links = peer_links(weights, self.present, readers=True)
        own = self.present & (weights.diagonal() != 0)
        self._enter_pairs(
            "blended", torch.cat([links, server_links(own)]), sampled=True
        )
        leaves = self._leaves(("blended", call, 0), self._log.mechanism.expected)
        if release is not None:  # from a listener outside, who sees what leaves
            leaves = after(leaves, release)
        return self._oracle.blended(x, weights, release=leaves)

    def compare(
        self,
        x: Tensor,
        *,
        samples: int | None = None,
        pairs: Tensor | None = None,
        home: Bool[Tensor, " d"] | None = None,
        release: tuple[Leaves, Leaves] | None = None,
    ) -> Comparison:
        """Comparisons of private gradients of both halves."""
        call, n = self._call("compare"), len(self.present)
        asks = torch.ones(n, n, dtype=torch.bool) if pairs is None else pairs.cpu()
        asks = asks & ~torch.eye(n, dtype=torch.bool)
        links = peer_links(asks.to(x).to(x.device), self.present, readers=True)
        everybody = torch.cat([links, server_links(self.present)])
        self._enter_pairs("compare", everybody, sampled=False)
        used = self._log.mechanism.sizes
        if samples is not None:
            used = used.clamp(max=samples)
        first = first_half(used.long()).double()
        halves = first, used - first
        a, b = (
            self._leaves(("compare", call, half), size)
            for half, size in enumerate(halves)
        )
        found: Comparison = self._oracle.compare(
            x, samples=samples, pairs=pairs, home=home, release=(a, b)
        )
        return found

    def wrap_with(self, wrap: Wrap) -> Sending:
        """The oracle that the wrap makes of this one."""
        return wrap(self)

    def without_clients(self, absent: Bool[Tensor, " n"]) -> Sending:
        """The same round without these clients."""
        return PerSampleOracle(self._oracle.without_clients(absent), self._log)

    def _leaves(self, question: tuple[str, int, int], samples: Tensor) -> Leaves:
        """A function that adds noise to gradients before they leave for readers."""
        mechanism = self._log.mechanism
        first, names = mechanism.first, mechanism.names.tolist()
        keys = [self._log.keys(*question, reader=name)[0] for name in names]
        streams = torch.tensor(keys)

        def leaves(g: Tensor, readers: Tensor, contributors: Tensor) -> Tensor:
            own = streams.to(g.device)[readers].tolist()
            return mechanism.add_noise(g.clone(), own, contributors - first, samples)

        return leaves

    def _enter_pairs(self, verb: str, links: Tensor, *, sampled: bool) -> None:
        """Records in the ledger the answers of clients, separately for every reader."""
        if self._log.ledger is not None:
            self._log.enter_links(verb, links.cpu(), sampled=sampled)

    def _call(self, verb: str) -> int:
        self._asked[verb] += 1
        return self._asked[verb] - 1

    def _everybody(self) -> Tensor:
        return self.present.nonzero()[:, 0].cpu()

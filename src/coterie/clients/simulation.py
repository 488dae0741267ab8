"""Simulated clients: all clients of a process answer in one vectorised pass.

`Simulation` holds data, model and seed. `Simulation.at(t)` is the oracle of round t.
Each call of the oracle draws new minibatches, with replacement. The random stream of a
call is named by (seed, purpose, round, call), and every client has its own sequence in
it. So answers do not depend on other calls, a resumed run is exact, and a client alone
at its site gives the same answer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from ..checks import InputError, integer, one_of
from ..data.federation import Federation, PartName
from ..models import OBJECTIVES, Objective
from ..models.objectives import classes_of
from ..optim.hessians import sharpness
from ..types import Oracle
from .blends import steady_widths
from .groups import Group, SingleProcess
from .kernels import Kernel
from .oracles import LocalClients, SimulatedOracle
from .programs import SimulatedClients, task_clients
from .samples import Batch, ClientSamples, Measurements
from .wrappers import PersonalOracle


class Simulation:
    """The simulated clients of this process: all clients of a federation, or some."""

    def __init__(
        self,
        federation: Federation,
        module: nn.Module,
        *,
        objective: Objective | None = None,
        batch_size: int = 16,
        seed: int = 0,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        loop: bool = False,
        compiled: bool = False,
        autocast: torch.dtype | None = None,
        group: Group | None = None,
        home: Bool[Tensor, " d"] | None = None,
    ) -> None:
        """Places data and model on the device.

        Args:
            federation: data of the clients of this process.
            module: architecture of every client's model.
            objective: the loss to minimise, and the measures (None: the objective of
                the task).
            batch_size: samples of a minibatch (0: the whole training part).
            seed: names the random streams of minibatches.
            device: where the work is done.
            dtype: the type of data and models.
            loop: debug mode, which runs client after client and pair after pair, and
                names the client in errors.
            compiled: whether to compile gradients, which saves time in long runs.
            autocast: a lower precision for products inside the model, for rows in
                single precision (None: none).
            group: the processes that hold the other clients (None: all are here).
            home: columns of a row that never leave their client (None: all may).
        """
        device = torch.device(device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("`device` cuda needs a CUDA GPU, but torch sees none.")
        self.batch_size = integer("batch_size", batch_size, at_least=0)
        self.seed, self.loop, self.dtype = seed, loop, dtype
        if autocast is not None and dtype != torch.float32:
            raise InputError(f"`autocast` needs a `dtype` of float32, got {dtype}.")
        task = one_of("task", federation.task, OBJECTIVES)
        self.objective = objective or OBJECTIVES[task]
        self.federation = federation.to(device, dtype)
        self.group = SingleProcess() if group is None else group
        held_out = int(federation.validation.size.sum())
        counts = torch.tensor([len(federation), held_out], device=device)
        self._clients, held_out = self.group.sum(counts).tolist()
        self.validates = held_out > 0  # whether any client has validation data
        self.kernel = Kernel(
            module,
            self.objective,
            self.federation.features,
            self.federation.targets,
            dtype=dtype,
            by_row=True if loop else None,
            compiled=compiled and not loop,
            autocast=autocast,
            classes=classes_of(task, federation.outputs),
        )
        self.samples = ClientSamples(
            self.federation, batch_size, dtype, randomised=self.kernel.is_random
        )
        if self.kernel.couples:
            _refuse_single_samples(self.federation, batch_size)
        self.home = None if home is None else home.to(device)

    def __len__(self) -> int:
        return self._clients

    def measure(self, x: Float[Tensor, "n d"], *, products: int = 8) -> Tensor:
        """Measures losses at x; returns (n,) the number of gradients it took.

        Step sizes such as `curvature(1)` need these measurements, which never leave a
        client.

        Args:
            x: the models at the start.
            products: the number of products with the Hessian; each costs two gradients
                of all data.
        """
        oracle = self.at(0, purpose="measure")
        (found,) = oracle.each(sharpness, x[:, :1], x, iterations=products)
        shapes, sizes = self.kernel.layout.shapes, self.kernel.layout.sizes
        are = torch.tensor([len(shape) > 1 for shape in shapes], device=x.device)
        weights = are.repeat_interleave(torch.tensor(sizes, device=x.device))
        # A loss without curvature allows any step size.
        curvature = torch.where(found[:, 0] > 0, found[:, 0], 1.0)
        self.samples = replace(
            self.samples, measurements=Measurements(curvature, weights)
        )
        return oracle.gradients

    def in_epochs(self) -> Simulation:
        """The same clients, which count their local steps in epochs.

        An epoch is a pass through a client's training data in minibatches without
        replacement, so that clients with more data take more steps.
        """
        if self.kernel.couples and self.batch_size:
            _refuse_single_rests(self.federation, self.batch_size)
        found = copy.copy(self)
        found.samples = replace(self.samples, epochs=True)
        return found

    def __repr__(self) -> str:
        samples = f"batches of {self.batch_size}" if self.batch_size else "full batches"
        return (
            f"<Simulation of {self.federation.name}: {len(self)} clients, {samples}, "
            f"seed {self.seed}, {self.dtype} on {self.federation.features.device}>"
        )

    def _repr_html_(self) -> str:
        """The samples of each client, for a notebook."""
        return f"<p>{escape(repr(self))}</p>{self.federation._repr_html_()}"

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t, in which `active` clients take part (None: all)."""
        held = LocalClients(self.samples, self.kernel, self.seed, self.loop, self.group)
        oracle = SimulatedOracle(held, t, self.present(active), purpose)
        return oracle if self.home is None else PersonalOracle(oracle, self.home)

    @property
    def holds_all(self) -> bool:
        """Whether all clients are here, and no column of a model is personal."""
        return self.group.size == 1 and self.home is None

    def those_at(self, t: int, active: Bool[Tensor, " n"]) -> Oracle:
        """The oracle of round t, where only the `active` clients are at hand."""
        present = self.present(active)
        here = present.nonzero()[:, 0]
        few = self.samples.select(here)
        held = LocalClients(few, self.kernel, self.seed, self.loop, self.group)
        return SimulatedOracle(held, t, present, "step", here)

    def present(self, active: Bool[Tensor, " n"] | None) -> Bool[Tensor, " n"]:
        """(N,) which clients take part (None: all), on the device; at least one."""
        if active is None:
            device = self.federation.clients.device
            return torch.ones(len(self), dtype=torch.bool, device=device)
        if active.shape != (len(self),) or not active.any():
            raise InputError(
                f"`active` must name at least one of {len(self)} clients, got {active}."
            )
        return active.to(self.federation.clients.device)

    def task_clients(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> SimulatedClients:
        """The clients at these positions, each in a round of its own.

        Each client has the samples that the first call of the verb uses in this round.
        So its answer does not depend on whether it is early or late.

        Args:
            who: positions of the clients.
            rounds: the round of each.
            verb: `grads`, `each`, `blended` or `compare`.
        """
        return task_clients(self.samples, self.kernel, self.seed, who, rounds, verb)

    @property
    def batch_counts(self) -> Float[Tensor, " n"]:
        """(N,) number of samples in each client's minibatch, for counts."""
        return self.samples.counts

    def width(self, clients: int) -> int:
        """How many clients to ask at once: at least `clients`; few values occur."""
        if not self.kernel.compiled:
            return clients
        on_gpu = self.federation.features.is_cuda  # all clients cost no more than few
        widths = [len(self)] if on_gpu else steady_widths(len(self))
        return next(width for width in widths if width >= clients)

    @property
    def names(self) -> Int[Tensor, " n"]:
        """(N,) the identities of the clients, on the CPU."""
        return self.federation.clients.cpu()

    @property
    def sizes(self) -> Float64[Tensor, " n"]:
        """(N,) the number of training samples of each client, on the CPU."""
        return self.federation.train.size.to("cpu", torch.float64)

    def evaluate(
        self, x: Float[Tensor, "n d"], name: PartName
    ) -> dict[str, Float[Tensor, " n"]]:
        """Loss and measures of each client's model on that client's own part."""
        part = self.federation.part(name)
        who = torch.arange(len(x), device=x.device)
        found = []
        for group in who.split(self.kernel.evaluated_at_once(int(part.size.max()))):
            index, mask = part.rows(group)
            weight = mask / part.size[group][:, None].to(self.dtype)
            found.append(self.kernel.measure(x[group], Batch(index, weight)))
        return {name: torch.cat([some[name] for some in found]) for name in found[0]}

    def outcomes(
        self, x: Float[Tensor, "n d"], name: PartName, samples: int
    ) -> dict[str, Float[Tensor, " m"]]:
        """Loss and measures of each sample of the part, client after client.

        Args:
            x: a model for each client.
            name: the name of the part.
            samples: the number of samples, including clients in other processes.
        """
        part = self.federation.part(name)
        index, mask = part.rows(torch.arange(len(x), device=x.device))
        return self.kernel.outcomes(x, Batch(index, mask.to(self.dtype)), samples)

    def outputs(
        self, x: Float[Tensor, "n d"], name: PartName
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and targets of each client's model on its own part, on the CPU."""
        part = self.federation.part(name)
        who = torch.arange(len(x), device=x.device)
        for group in who.split(self.kernel.evaluated_at_once(int(part.size.max()))):
            index, mask = part.rows(group)
            yield from self.kernel.outputs(x[group], Batch(index, mask.to(self.dtype)))


def _refuse_single_rests(federation: Federation, batch_size: int) -> None:
    """Refuses epochs whose last minibatch has one sample, which has no statistics."""
    single = (federation.train.size % batch_size == 1).nonzero()[:1, 0]
    for client in map(int, single):
        raise InputError(
            "batch normalisation needs two samples in a batch, but the last one in an "
            f"epoch of {federation.name_of(client)} has 1 sample with `batch_size` "
            f"{batch_size}: use another `batch_size`, or `steps`."
        )


def _refuse_single_samples(federation: Federation, batch_size: int) -> None:
    """Refuses batches of one sample, or with one sample again and again."""
    if batch_size == 1:
        raise InputError(
            "`batch_size` must be at least 2 for a model with batch normalisation, "
            "got 1."
        )
    few = (federation.train.size < 2).nonzero()[:1, 0]
    for client in map(int, few):
        raise InputError(
            "batch normalisation needs two training samples of every client, but "
            f"{federation.name_of(client)} has {int(federation.train.size[client])}."
        )

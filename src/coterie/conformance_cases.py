"""What the checks of algorithms run on: tiny federations, and runs that keep all.

The federations have 6 clients and models of 19 parameters at most, so that all checks
take seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from . import models, seeds
from .checks import InputError, suggestion
from .data.federation import PARTS, Federation, Table, federate
from .deploy.remote import RemoteOracle
from .deploy.sites import Site
from .ingredients import RECIPES, ingredients_of
from .oracle import Simulation
from .record import pack
from .types import Algorithm, Federated, Info, State

Factory = Callable[..., Algorithm]

ROUNDS = 4
CLIENTS = 6
_CLOSE = 1e-9
"""Sums of a few hundred products in another order, in double precision, and what a few
steps make of the difference."""


@dataclass(frozen=True)
class Case:
    """A factory under test and the options that it gets."""

    factory: Factory
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ingredients_of(self.factory)  # refuses what has no recipe
        for name in self.options:
            if name not in self.defaults:
                raise InputError(
                    f"the algorithm has no option {name!r}."
                    f"{suggestion(name, self.defaults)}"
                )

    @property
    def ingredients(self) -> list[str]:
        """The names of the positional parameters."""
        return ingredients_of(self.factory)

    @property
    def defaults(self) -> dict[str, object]:
        """The keyword-only parameters and their defaults."""
        parameters = inspect.signature(self.factory).parameters.items()
        return {n: p.default for n, p in parameters if p.kind == p.KEYWORD_ONLY}

    def made(self, federation: Federation) -> dict[str, Tensor]:
        """The ingredients for a federation, by name."""
        made = {}
        for name in self.ingredients:
            recipe, choice = RECIPES[name]
            made[name] = recipe(choice, federation).clone()
        return made

    def build(
        self,
        federation: Federation,
        *,
        instead: Mapping[str, Tensor] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Algorithm:
        """A fresh algorithm for a federation.

        Args:
            federation: gives the ingredients.
            instead: ingredients to use in place of those.
            options: options beyond those of the case.
        """
        given = {**self.made(federation), **(instead or {})}
        positional = [given[name] for name in self.ingredients]
        return self.factory(*positional, **{**self.options, **(options or {})})


class Trace(NamedTuple):
    """A run: the state before the first round and after each, and what came out."""

    states: list[State]
    infos: list[Info]
    personal: Tensor  # (N, D)


class Setting(NamedTuple):
    """How the clients of a run answer."""

    dtype: torch.dtype = torch.float64
    batch_size: int = 4
    loop: bool = False
    sites: tuple[str, ...] = ()  # programs of these modules run at sites, by message
    module: Callable[[], nn.Module] = lambda: models.mlp(
        (4,), 3, hidden=(2,), activation="tanh"
    )


def small_federation(clients: int = CLIENTS) -> Federation:
    """Classification in two clusters that name the classes differently."""
    rng = seeds.generator("conformance", "data")
    sizes = torch.tensor([7 + (3 * i) % 5 for i in range(clients)])
    role = torch.cat([torch.arange(int(size)).clamp(max=2) for size in sizes])
    role = torch.where(role == 2, 0, role + 1)  # one for validation, one to test
    owner = torch.arange(clients).repeat_interleave(sizes)
    features = torch.randn(len(owner), 4, generator=rng, dtype=torch.float64)
    classes = features[:, :3].argmax(1)
    targets = torch.where(owner % 2 == 0, classes, (classes + 1) % 3)
    table = Table("small", features, targets, "classification", 3)
    return federate(table, owner, role, clusters=torch.arange(clients) % 2)


def common_optimum(clients: int = CLIENTS) -> Federation:
    """Noiseless linear regression: different features, the same best model.

    The Hessians are diagonal with entries from 1 to 3, so that any usual step size
    converges.
    """
    rng = seeds.generator("conformance", "optimum")
    real = torch.float64
    best = torch.randn(5, generator=rng, dtype=real)
    samples = 20
    blocks = []
    for _ in range(clients):
        q = torch.linalg.qr(torch.randn(samples, 5, generator=rng, dtype=real))[0]
        curvature = 1 + 2 * torch.rand(5, generator=rng, dtype=real)
        blocks.append(q * (samples * curvature / 2).sqrt())
    # Validation and test data are the training data again; nobody looks at them.
    features = torch.cat([torch.cat(blocks)] * len(PARTS))
    owner = torch.arange(clients).repeat_interleave(samples).repeat(len(PARTS))
    role = torch.arange(len(PARTS)).repeat_interleave(clients * samples)
    table = Table("optimum", features, features @ best, "regression", 1)
    return federate(
        table,
        owner,
        role,
        clusters=torch.zeros(clients, dtype=torch.long),
        optima=best.expand(clients, 5).clone(),
    )


def relabelled(federation: Federation, order: Int[Tensor, " m"]) -> Federation:
    """The federation whose client j is client order[j] of this one."""
    return federation.select(order)


def starting_rows(federation: Federation, setting: Setting) -> Tensor:
    """Different starting models (N, D), named by the identities of the clients."""
    size = len(models.ravel(models.build(setting.module, 0)))
    rows = []
    for identity in federation.clients.tolist():
        rng = seeds.generator("conformance", "start", identity)
        rows.append(torch.randn(size, generator=rng, dtype=torch.float64) / 2)
    return torch.stack(rows).to(setting.dtype)


class _Sites:
    """Every client at a site of its own that answers messages, in this process."""

    def __init__(
        self, federation: Federation, module: nn.Module, setting: Setting
    ) -> None:
        self._names: list[int] = federation.clients.tolist()
        self._sites = [
            Site(
                federation.only(k),
                module,
                batch_size=setting.batch_size,
                dtype=setting.dtype,
                allowed=setting.sites,
            )
            for k in range(len(federation))
        ]

    def __len__(self) -> int:
        return len(self._sites)

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> RemoteOracle:
        who = torch.ones(len(self), dtype=torch.bool) if active is None else active
        return RemoteOracle(self._ask, self._names, t, who, purpose)

    def _ask(self, client: int, question: bytes) -> bytes:
        return self._sites[client].answer(question)


def _federated(federation: Federation, setting: Setting) -> Federated:
    module = models.build(setting.module, 0, setting.dtype)
    if setting.sites:
        return _Sites(federation, module, setting)
    return Simulation(
        federation,
        module,
        batch_size=setting.batch_size,
        dtype=setting.dtype,
        loop=setting.loop,
    )


def trace(
    algorithm: Algorithm,
    federation: Federation,
    setting: Setting,
    *,
    rounds: int = ROUNDS,
    x: Tensor | None = None,
    start: tuple[int, State] | None = None,
    active: Bool[Tensor, " n"] | None = None,
) -> Trace:
    """Runs an algorithm and keeps every state."""
    simulation = _federated(federation, setting)
    x = starting_rows(federation, setting) if x is None else x
    done, state = start if start is not None else (0, algorithm.init(x))
    states, infos = [state], []
    for t in range(done + 1, rounds + 1):
        oracle = simulation.at(t, active)
        state, info = algorithm.step(state, oracle, seeds.generator("rounds", t))
        states.append(state)
        infos.append(info)
    last = simulation.at(rounds, active, purpose="use")
    return Trace(states, infos, algorithm.personal(state, last))


def welcomed(
    case: Case,
    state: State,
    federation: Federation,
    trained: int,
    setting: Setting,
    *,
    instead: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The models that an algorithm gives to all but the first `trained` clients.

    Args:
        case: the algorithm.
        state: of those who trained.
        federation: everybody, the newcomers last.
        trained: how many of them trained.
        setting: how clients answer.
        instead: ingredients for everybody, in place of those of the recipes.
    """
    later = federation.select(torch.arange(trained, len(federation)))
    oracle = _federated(later, setting).at(ROUNDS, purpose="welcome")
    welcome = case.build(federation, instead=instead).welcome
    assert welcome is not None
    return welcome(state, oracle)


def leaves(state: State) -> dict[str, object]:
    """The tensors and numbers of a state, each under the path to it."""
    packed = pack(state)
    if not isinstance(packed, dict):
        return {"": packed}
    return {
        f"{name}.{path}".rstrip("."): value
        for name, part in packed.items()
        for path, value in leaves(part).items()
    }


def same(first: object, second: object) -> bool:
    """Whether two leaves are equal bit by bit."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        alike = first.shape == second.shape and first.dtype == second.dtype
        return alike and torch.equal(first, second)
    return type(first) is type(second) and bool(first == second)


def agree(first: State, second: State, why: str) -> None:
    """Raises AssertionError that names the first part in which two states differ."""
    one, two = leaves(first), leaves(second)
    assert one.keys() == two.keys(), f"{why}: the states have different parts."
    for name, value in one.items():
        assert same(value, two[name]), f"{why}: `{name}` differs."


def close(first: Tensor, second: Tensor, why: str, tolerance: float = _CLOSE) -> None:
    """Raises AssertionError when models differ by more than rounding."""
    gap = float((first - second).abs().max() / second.abs().max().clamp(min=1))
    assert gap <= tolerance, f"{why}: models differ by {gap:.2g}."


def shared(rows: Tensor) -> bool:
    """Whether two of the rows are the same but for rounding."""
    rows = rows.to(torch.float64)
    gap = (rows[:, None] - rows).abs().amax(2).fill_diagonal_(torch.inf)
    return bool((gap <= _CLOSE * rows.abs().max()).any())


def draws_nothing_global(run: Callable[[], object], instead: str) -> None:
    """Raises AssertionError if `run` draws from a global generator.

    Args:
        run: what is watched.
        instead: the generator that it should draw from.
    """
    torch_before = torch.get_rng_state()
    numpy_before = repr(np.random.get_state())  # noqa: NPY002
    run()
    assert torch.equal(torch.get_rng_state(), torch_before), (
        f"the run drew from torch's global generator; use {instead}."
    )
    assert repr(np.random.get_state()) == numpy_before, (  # noqa: NPY002
        f"the run drew from NumPy's global generator; use {instead}."
    )


def has_shape_and_dtype(personal: Tensor, state: State, x: Tensor) -> None:
    """Raises AssertionError unless models and state are like the first rows x."""
    wanted, shape = tuple(x.shape), tuple(personal.shape)
    assert shape == wanted, f"models {wanted} became {shape}."
    assert personal.dtype == x.dtype, f"{x.dtype} became {personal.dtype}."
    assert personal.isfinite().all(), "models are not finite."
    for name, value in leaves(state).items():
        if isinstance(value, Tensor) and value.is_floating_point():
            assert value.dtype == x.dtype, f"`{name}` is {value.dtype}, not {x.dtype}."

"""Cases for the checks of algorithms, and runs that keep every state.

Models have 19 parameters at most, so that all checks take seconds.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .. import models, seeds
from ..checks import InputError, suggestion
from ..clients.groups import Group
from ..clients.simulation import Simulation
from ..data.federation import Federation
from ..engine.checkpoints import Moment
from ..engine.clocks import Clock, Rings, clock
from ..engine.events import EventLoop
from ..engine.times import usual_work
from ..records import pack
from ..study.ingredients import RECIPES, Context, ingredients_of
from ..types import Algorithm, ClientsInRounds, Flow, Info, State, traffic_of
from .federations import small_federation

Factory = Callable[..., Algorithm]
Face = Literal["rounds", "time"]

ROUNDS = 4
EVENTS = 18
"""The number of arrivals in a run in time; some are answers of the slow client."""

PACES = clock("lognormal(1, 0.5)", "stragglers(1, 2.5)")
"""A clock with which no two tasks end at the same time, and client 0 is slow."""

ACTIVE = torch.tensor([False, False, True, True, False, True])
"""Clients that take part if not all do; none is in the first of three processes."""

_TEXTS = {"norm": "head"}
"""Ingredients with other texts: these models have no batch normalisation, and columns
that stay at home are treated alike."""

_CLOSE = 1e-9
"""Relative rounding, in double precision, of sums of a few hundred products in another
order, after a few steps."""


class NotApplicable(Exception):
    """The error of a check of something that this kind of method does not promise."""


@dataclass(frozen=True)
class Case:
    """A factory to test, its options, and the form to test: in rounds or in time."""

    factory: Factory
    options: Mapping[str, object] = field(default_factory=dict)
    face: Face = "rounds"

    def __post_init__(self) -> None:
        ingredients_of(self.factory)  # refuses ingredients without a recipe
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

    @property
    def known_optimum(self) -> dict[str, object]:
        """The options for the check of this name: those declared and those given."""
        declared = getattr(self.factory, "known_optimum", {})
        for name in declared:
            if name not in self.defaults:
                raise InputError(
                    f"`known_optimum` must name options of the method, but it has no "
                    f"{name!r}.{suggestion(name, self.defaults)}"
                )
        return {**declared, **self.options}

    def make_ingredients(
        self, federation: Federation, module: Callable[[], nn.Module] | None = None
    ) -> dict[str, Tensor]:
        """The ingredients for a federation, by name; those that are None are left out.

        Args:
            federation: the clients.
            module: the model (None: the usual one).
        """
        made = {}
        layout = models.layout(_start_model(module or Setting().module, torch.float64))
        context = Context(federation, layout, 0)
        for name in self.ingredients:
            recipe, choice = RECIPES[name]
            found = recipe(_TEXTS.get(name, choice), context)
            if found is not None:
                made[name] = found.clone()
        return made

    def build(
        self,
        federation: Federation,
        *,
        instead: Mapping[str, Tensor] | None = None,
        options: Mapping[str, object] | None = None,
        module: Callable[[], nn.Module] | None = None,
    ) -> Algorithm:
        """A fresh algorithm for a federation.

        Args:
            federation: the clients; gives the ingredients.
            instead: ingredients that replace the usual ones.
            options: more options than the options of the case.
            module: the model (None: the usual one).
        """
        given = {**self.make_ingredients(federation, module), **(instead or {})}
        positional = [given.get(name) for name in self.ingredients]
        return self.factory(*positional, **{**self.options, **(options or {})})

    # Runs that several checks read and do not change.

    @functools.cached_property
    def usual(self) -> Trace:
        """The run of the small federation in a usual setting."""
        return trace_case(self, small_federation())

    @functools.cached_property
    def single(self) -> Trace:
        """The usual run in single precision."""
        return trace_case(self, small_federation(), Setting(dtype=torch.float32))

    @functools.cached_property
    def partial(self) -> Trace:
        """The usual run in rounds, in which only some clients take part."""
        federation = small_federation()
        return trajectory(self.build(federation), federation, Setting(), active=ACTIVE)


class Trace(NamedTuple):
    """A run: its results, and its states before the first round and after each round.

    For a run in time, it has only the last state, and the events.
    """

    states: list[State]
    infos: list[Info]
    personal: Tensor  # (N, D)
    sent: list[float]  # values in each round, or to a server and to peers in time
    events: Sequence[tuple[object, ...]] = ()  # time, clients, delays, updates


class Setting(NamedTuple):
    """The model and the minibatches of a run."""

    dtype: torch.dtype = torch.float64
    batch_size: int = 4
    loop: bool = False
    module: Callable[[], nn.Module] = lambda: models.mlp(
        (4,), 3, hidden=(2,), activation="tanh"
    )


@functools.lru_cache(maxsize=8)
def _start_model(module: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """The model at its start; simulations copy it."""
    return models.build(module, 0, dtype)


def starting_rows(federation: Federation, setting: Setting) -> Tensor:
    """(N, D) different starting models, by the identities of the clients."""
    size = sum(models.layout(_start_model(setting.module, torch.float64)).sizes)
    rows = []
    for identity in federation.clients.tolist():
        rng = seeds.generator("conformance", "start", identity)
        rows.append(torch.randn(size, generator=rng, dtype=torch.float64) / 2)
    return torch.stack(rows).to(setting.dtype)


def simulation_of(
    federation: Federation, setting: Setting, group: Group | None = None
) -> Simulation:
    """A simulation of the clients of a federation that are in this process."""
    return Simulation(
        federation,
        _start_model(setting.module, setting.dtype),
        batch_size=setting.batch_size,
        dtype=setting.dtype,
        loop=setting.loop,
        group=group,
    )


def trajectory(
    algorithm: Algorithm,
    federation: Federation,
    setting: Setting,
    *,
    rounds: int = ROUNDS,
    x: Tensor | None = None,
    start: tuple[int, State] | None = None,
    active: Bool[Tensor, " n"] | None = None,
) -> Trace:
    """A run of an algorithm on a federation, with every state."""
    simulation = simulation_of(federation, setting)
    x = starting_rows(federation, setting) if x is None else x
    return trace_rounds(algorithm, simulation, x, rounds, start, active)


def trace_rounds(
    algorithm: Algorithm,
    simulation: ClientsInRounds,
    x: Tensor,
    rounds: int = ROUNDS,
    start: tuple[int, State] | None = None,
    active: Bool[Tensor, " n"] | None = None,
) -> Trace:
    """A run of an algorithm on the rows at hand, with every state."""
    begin = simulation.at(0, purpose="init")
    done, state = start if start is not None else (0, algorithm.init(x, begin))
    states, infos, sent = [state], [], []
    for t in range(done + 1, rounds + 1):
        oracle = simulation.at(t, active)
        state, info = algorithm.step(state, oracle, seeds.generator("rounds", t))
        states.append(state)
        infos.append(info)
        sent.append(traffic_of(oracle.sent, oracle.mine).total)
    last = simulation.at(rounds, active, purpose="use")
    return Trace(states, infos, algorithm.personal(state, last), sent)


def flow_of(algorithm: Algorithm) -> Flow:
    """The flow of a method that has one."""
    assert algorithm.flow is not None, "the method has no flow."
    return algorithm.flow


def event_loop(
    algorithm: Algorithm,
    federation: Federation,
    setting: Setting | None = None,
    *,
    x: Tensor | None = None,
    paces: Clock = PACES,
    start: Moment | None = None,
    grouped: bool = True,
) -> EventLoop:
    """A run in time; an edge rings about once in the time of a task."""
    setting, flow = setting or Setting(), flow_of(algorithm)
    clients, rings = simulation_of(federation, setting), None
    if flow.meet is not None or flow.couples:
        assert flow.edges is not None, "pairs meet, but the method names no `edges`."
        edges = federation.clients[flow.edges]
        rate = 1 / float(usual_work(flow, clients).max())
        rings = Rings(edges, torch.full((len(edges),), rate, dtype=torch.float64))
    x = starting_rows(federation, setting) if x is None else x
    options = {"clock": paces, "rings": rings, "start": start, "grouped": grouped}
    return EventLoop(algorithm, clients, x, **options)  # type: ignore[arg-type]


def advance(run: EventLoop, events: int = EVENTS) -> EventLoop:
    """The run, after this number of further events."""
    for _ in range(events):
        run.step()
    return run


def trace_case(
    case: Case,
    federation: Federation,
    setting: Setting | None = None,
    *,
    instead: Mapping[str, Tensor] | None = None,
) -> Trace:
    """A run of the face that is tested."""
    setting, algorithm = setting or Setting(), case.build(federation, instead=instead)
    if case.face == "rounds":
        return trajectory(algorithm, federation, setting)
    run, infos, events = event_loop(algorithm, federation, setting), [], []
    for _ in range(EVENTS):
        events.append(run.step()[:4])
        infos.append(flow_of(algorithm).info(run.state))
    return Trace([run.state], infos, run.personal(), [*run.sent], events)


def newcomer_models(
    case: Case,
    state: State,
    federation: Federation,
    trained: int,
    setting: Setting,
    *,
    instead: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The models that an algorithm gives to all clients after the first `trained`.

    Args:
        case: the algorithm.
        state: the state of the clients that trained.
        federation: all clients, the newcomers last.
        trained: the number of clients that trained.
        setting: the setting of the run.
        instead: ingredients for all clients, in place of the usual ones.
    """
    later = federation.select(torch.arange(trained, len(federation)))
    oracle = simulation_of(later, setting).at(ROUNDS, purpose="welcome")
    method = case.build(federation, instead=instead)
    welcome = (flow_of(method) if case.face == "time" else method).welcome
    if welcome is None:
        raise NotApplicable("it has no `welcome`: newcomers take the best model there.")
    return welcome(state, oracle)


def leaves(state: State) -> dict[str, object]:
    """The tensors and numbers of a state, by their paths."""
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
        return alike and torch.equal(first.to_dense(), second.to_dense())
    return type(first) is type(second) and bool(first == second)


def agree(first: State, second: State, why: str) -> None:
    """Raises an AssertionError that names the first difference of two states."""
    one, two = leaves(first), leaves(second)
    assert one.keys() == two.keys(), f"{why}: the states have different parts."
    for name, value in one.items():
        assert same(value, two[name]), f"{why}: `{name}` differs."


def close(first: Tensor, second: Tensor, why: str) -> None:
    """Raises an AssertionError if models differ by more than rounding."""
    gap = float((first - second).abs().max() / second.abs().max().clamp(min=1))
    assert gap <= _CLOSE, f"{why}: models differ by {gap:.2g}."


def equal_rows(rows: Float[Tensor, "n d"]) -> Bool[Tensor, "n n"]:
    """Whether rows are equal to each other, for each pair, up to rounding."""
    rows = rows.to(torch.float64)
    largest = rows.where(rows.isfinite(), 0.0).abs().max()
    gap = (rows[:, None] - rows).abs().amax(2)
    others = ~torch.eye(len(rows), dtype=torch.bool)
    return (gap <= _CLOSE * largest) & others


def has_equal_rows(rows: Float[Tensor, "n d"]) -> bool:
    """Whether any two of the rows are equal, up to rounding."""
    return bool(equal_rows(rows).any())

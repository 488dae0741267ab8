"""What every method without waiting must do, as checks that anybody can run on theirs.

    for finding in check_asynchronous(my_factory, twin=Twin(my_algorithm)):
        print(*finding)

As in `conformance.suite`: ingredients are made by their names, options keep their
defaults unless given, and a check raises AssertionError with a sentence. Its twin is
what a method is in rounds, where nobody is late.
"""

from __future__ import annotations

import copy
import functools
import io
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from .. import seeds
from ..algorithms.adaptive_all_for_one import adaptive_all_for_one
from ..algorithms.all_for_all import all_for_all
from ..algorithms.ditto import ditto
from ..algorithms.local import local
from ..asynchronous.adaptive_all_for_one import async_adaptive_all_for_one
from ..asynchronous.agraf import agraf
from ..asynchronous.all_for_all import async_all_for_all
from ..asynchronous.ditto import async_ditto
from ..asynchronous.local import own_pace
from ..asynchronous.loss_network import loss_network
from ..asynchronous.sgd import async_sgd
from ..checks import TrainingError
from ..clients.simulation import Simulation
from ..data.federation import Federation
from ..engine.clocks import Clock, Rings, clock
from ..engine.events import Arrivals, Asynchronous, Kind, Moment, Run
from ..models import zoo as models
from ..records import pack, unpack
from ..types import Algorithm, Info, Oracle, State
from .cases import (
    CLIENTS,
    ROUNDS,
    Case,
    Factory,
    Setting,
    agree,
    close,
    common_optimum,
    draws_nothing_global,
    has_shape_and_dtype,
    leaves,
    relabelled,
    same,
    small_federation,
    starting_rows,
)
from .suite import (
    Finding,
    NotApplicable,
    check_bad_ingredients,
    check_bad_options,
    findings_of,
)

Maker = Callable[..., Asynchronous]

EVENTS = 18
"""Arrivals in a run: the slow client has answered too."""

PACES = clock("lognormal(1, 0.5)", "stragglers(1, 2.5)")
"""Nobody ends at the same time as others, and client 0 is slow."""

_NO_TIME = clock("constant(0)")
_ALMOST = 100
"""Arrivals that a round of a twin may take at most."""


class Twin(NamedTuple):
    """What a method is in rounds where nobody is late.

    The factory is that of an algorithm. It takes ingredients and options of the method
    by their names, as many as it has itself.
    """

    factory: Factory
    options: Mapping[str, object] = {}  # of the method, for which that holds
    clients: int = CLIENTS  # with so many
    names: Mapping[str, str] = {}  # that options of the method have in the algorithm


@dataclass(frozen=True)
class TimedCase:
    """A factory under test, the options that it gets, and its twin, if there is one."""

    factory: Maker
    options: Mapping[str, object] = field(default_factory=dict)
    twin: Twin | None = None

    def __post_init__(self) -> None:
        self.shell  # noqa: B018 (refuses ingredients and options that are not known)

    @property
    def shell(self) -> Case:
        """The same for checks of what begins alike: an algorithm without rounds."""

        @functools.wraps(self.factory)
        def make(*ingredients: Any, **options: Any) -> Algorithm:
            return Algorithm(self.factory(*ingredients, **options).init, _no_round)

        return Case(make, self.options)

    def build(
        self,
        federation: Federation,
        *,
        instead: Mapping[str, Tensor] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Asynchronous:
        """A fresh method for a federation; see `conformance_cases.Case`."""
        case = self.shell
        given = {**case.made(federation), **(instead or {})}
        positional = [given[name] for name in case.ingredients]
        return self.factory(*positional, **{**self.options, **(options or {})})


def _no_round(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
    raise AssertionError("the method has no rounds.")


def begun(
    method: Asynchronous,
    federation: Federation,
    setting: Setting | None = None,
    *,
    x: Tensor | None = None,
    paces: Clock = PACES,
    start: Moment | None = None,
    grouped: bool = True,
) -> Run:
    """A run of a method; edges, where it has some, ring once a second."""
    setting = Setting() if setting is None else setting
    simulation = Simulation(
        federation,
        models.build(setting.module, 0, setting.dtype),
        batch_size=setting.batch_size,
        dtype=setting.dtype,
        loop=setting.loop,
    )
    rings = None
    if method.meet is not None or method.couples:
        assert method.edges is not None, "pairs meet, but the method names no `edges`."
        edges = federation.clients[method.edges]
        rings = Rings(edges, torch.ones(len(edges), dtype=torch.float64))
    x = starting_rows(federation, setting) if x is None else x
    return Run(
        method,
        simulation,
        x,
        clock=paces,
        rings=rings,
        start=start,
        grouped=grouped,
    )


def _went_on(run: Run, events: int = EVENTS) -> Run:
    for _ in range(events):
        run.step()
    return run


def check_inputs_untouched(case: TimedCase) -> None:
    """Starting models, ingredients and answers are not modified."""
    federation = small_federation()
    given = case.shell.made(federation)
    x = starting_rows(federation, Setting())
    before = {name: value.clone() for name, value in {**given, "x": x}.items()}
    method = case.build(federation, instead=given)

    def arrive(state: State, now: Arrivals) -> list[int]:
        kept = [answer.clone() for answer in now.answers]
        begin = list(method.arrive(state, now))
        for answer, old in zip(now.answers, kept, strict=True):
            assert same(answer, old), "`arrive` modified an answer."
        return begin

    run = _went_on(begun(method._replace(arrive=arrive), federation, x=x))
    state = copy.deepcopy(run.state)
    run.personal()
    method.info(run.state)
    agree(run.state, state, "`personal` or `info` modified the state")
    for name, value in {**given, "x": x}.items():
        assert same(value, before[name]), f"`{name}` was modified."


def check_runs_do_not_meet(case: TimedCase) -> None:
    """A method keeps nothing by itself: two of its runs do not disturb each other."""
    federation = small_federation()
    method = case.build(federation)
    x = starting_rows(federation, Setting())
    one, other = begun(method, federation), begun(method, federation, x=5 + x)
    for _ in range(EVENTS):
        one.step()
        other.step()
    alone = _went_on(begun(case.build(federation), federation))
    agree(one.state, alone.state, "a second run disturbs the first")


def check_same_seed_same_result(case: TimedCase) -> None:
    """Two runs are equal bit by bit, whatever the global generators hold."""
    federation = small_federation()
    runs = []
    for global_seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(global_seed)
            runs.append(_went_on(begun(case.build(federation), federation)))
    agree(runs[0].state, runs[1].state, "two runs with the same seed")
    assert same(runs[0].personal(), runs[1].personal()), (
        "two runs with the same seed give different personal models."
    )


def check_no_global_randomness(case: TimedCase) -> None:
    """A run takes nothing from the global generators of torch and NumPy."""
    federation = small_federation()
    draws_nothing_global(
        lambda: _went_on(begun(case.build(federation), federation)).personal(),
        "that of the arrivals",
    )


def check_shapes_and_dtype(case: TimedCase) -> None:
    """Models keep shape (N, D) and precision, and so does all of the state."""
    federation = small_federation()
    for dtype in (torch.float32, torch.float64):
        setting = Setting(dtype=dtype)
        run = _went_on(begun(case.build(federation), federation, setting))
        x = starting_rows(federation, setting)
        has_shape_and_dtype(run.personal(), run.state, x)


def check_info(case: TimedCase) -> None:
    """Whenever it is asked, it says what it sent so far, and only finite things."""
    federation = small_federation()
    method = case.build(federation)
    run, sent = begun(method, federation), 0.0
    for _ in range(EVENTS):
        run.step()
        info = method.info(run.state)
        assert "floats" in info, "the info has no `floats`."
        floats = float(info["floats"])
        assert math.isfinite(floats), f"`floats` is {floats}."
        assert floats >= sent, f"`floats` fell from {sent:g} to {floats:g}."
        sent = floats
        for name, value in info.items():
            finite = bool(torch.as_tensor(value).isfinite().all())
            assert finite, f"`{name}` in the info is not finite."
        if "weights" in info:
            shape = tuple(torch.as_tensor(info["weights"]).shape)
            wanted = (len(federation), len(federation))
            assert shape == wanted, f"`weights` has shape {shape}, not {wanted}."


def check_relabelling(case: TimedCase) -> None:
    """Relabelling the clients relabels the result."""
    federation = small_federation()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    given = case.shell.made(federation)
    # Graphs follow positions, so that ingredients are relabelled and not made anew.
    moved = {
        name: value[order][:, order] if value.dim() == 2 else value[order]
        for name, value in given.items()
    }
    other = relabelled(federation, order)
    here = _went_on(begun(case.build(federation, instead=given), federation))
    there = _went_on(begun(case.build(other, instead=moved), other))
    close(there.personal(), here.personal()[order], "relabelled clients get others")


def check_one_by_one(case: TimedCase) -> None:
    """Tasks computed together, one by one, or in debug mode give the same models."""
    federation = small_federation()
    runs = [
        begun(case.build(federation), federation),
        begun(case.build(federation), federation, grouped=False),
        begun(case.build(federation), federation, Setting(loop=True)),
    ]
    for _ in range(EVENTS):
        first, *others = (run.step() for run in runs)
        for event in others:
            assert event[:4] == first[:4], "together and one by one, others answer."
    for run in runs[1:]:
        close(run.personal(), runs[0].personal(), "together and one by one")


def check_resuming(case: TimedCase) -> None:
    """In mid-flight a run survives save and load; resuming equals not stopping."""
    federation = small_federation()
    for events in (1, EVENTS // 2):
        whole = _went_on(begun(case.build(federation), federation), events)
        file = io.BytesIO()
        torch.save(pack(whole.moment()), file)
        file.seek(0)
        fresh = case.build(federation)  # as in a new process
        like = begun(fresh, federation).moment()
        assert leaves(like.state).keys() == leaves(whole.state).keys(), (
            "the state has other parts later than after `init`."
        )
        moment = unpack(torch.load(file, weights_only=True), like)
        rest = begun(fresh, federation, start=moment)
        for _ in range(EVENTS // 2):
            there, here = rest.step(), whole.step()
            assert there[:4] == here[:4], "after resuming, others answer."
        agree(rest.state, whole.state, "resuming differs from not stopping")
        assert same(rest.personal(), whole.personal()), (
            "resuming gives other personal models than not stopping."
        )


def check_without_delays(case: TimedCase) -> None:
    """Where nobody is late, models are those of the method of rounds, its twin."""
    if case.twin is None:
        raise NotApplicable("no method of rounds was named, its `twin`.")
    maker, options, clients, names = case.twin
    federation = small_federation(clients)
    options = {**case.shell.defaults, **case.options, **options}
    called = {names.get(n, n): v for n, v in options.items()}
    shared = {n: v for n, v in called.items() if n in Case(maker).defaults}
    algorithm = Case(maker, shared).build(federation)
    run = begun(case.build(federation, options=options), federation, paces=_NO_TIME)
    simulation = Simulation(
        federation,
        models.build(Setting().module, 0, torch.float64),
        batch_size=Setting().batch_size,
        dtype=torch.float64,
    )
    state = algorithm.init(starting_rows(federation, Setting()))
    for t in range(1, 2 * ROUNDS + 1):
        state, _ = algorithm.step(state, simulation.at(t), seeds.generator("rounds", t))
        wanted = algorithm.personal(state, simulation.at(t, purpose="use"))
        _arrive_at(run, wanted, t)


def _arrive_at(run: Run, wanted: Tensor, t: int) -> None:
    """Goes on until models are those; how many answers make a round is not said."""
    gap = math.inf
    for _ in range(_ALMOST):
        run.step()
        try:
            return close(run.personal(), wanted, "")
        except AssertionError:
            gap = min(gap, float((run.personal() - wanted).abs().max()))
    raise AssertionError(
        f"without delays, models are never those of round {t} of the method of rounds: "
        f"they differ by {gap:.2g} at least."
    )


def check_work(case: TimedCase) -> None:
    """What tasks are said to take is what clients compute."""
    federation = small_federation()
    method = case.build(federation)
    taken = torch.zeros(len(federation), dtype=torch.float64)

    def counting(kind: Kind) -> Kind:
        def program(clients: Any, *rows: Tensor) -> Any:
            answers = kind.program(clients, *rows)
            taken.add_(clients._oracle.gradients)  # it asked this question alone
            return answers

        return kind._replace(program=program)

    counted = method._replace(kinds=tuple(counting(kind) for kind in method.kinds))
    run = begun(counted, federation, grouped=False)
    for _ in range(EVENTS):
        before, said = taken.clone(), run.gradients.clone()
        event = run.step()
        found, told = (taken - before).tolist(), (run.gradients - said).tolist()
        for client in event.clients:
            assert math.isclose(found[client], told[client], rel_tol=1e-9), (
                f"a task of client {client} took {found[client]:g} gradients of "
                f"samples, but its `work` says {told[client]:g}."
            )


@dataclass(frozen=True)
class _Gone:
    """A clock by which one client never returns."""

    client: int
    others: Clock = PACES

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        seconds = self.others.durations(clients, first, count)
        return seconds.masked_fill(clients[:, None] == self.client, math.inf)

    def ready(self, client: int, time: float) -> float:
        return self.others.ready(client, time)


def check_nobody_waits(case: TimedCase) -> None:
    """One client that never returns does not stop the others."""
    federation = small_federation()
    method = case.build(federation)
    run = begun(method, federation, paces=_Gone(2))
    answered: set[int] = set()
    try:
        while run.updates < 12 * CLIENTS:
            clients = run.step().clients
            answered |= set(clients) if run.updates > 4 * CLIENTS else set()
    except TrainingError as error:
        raise AssertionError(f"one client that never returns: {error}") from error
    silent = set(range(CLIENTS)) - answered - {2}
    # Who exchanges models with one that never returns cannot return either.
    assert len(silent) <= method.couples, (
        f"one client never returns, and so do clients {sorted(silent)}."
    )
    assert run.personal().isfinite().all(), "models are not finite."


def check_bad_values(case: TimedCase) -> None:
    """What an option or ingredient cannot be is refused with its name."""
    check_bad_options(case.shell)
    check_bad_ingredients(case.shell)


def check_known_optimum(case: TimedCase) -> None:
    """Where all clients have the same best model, the method arrives there."""
    federation = common_optimum()
    setting = Setting(batch_size=0, module=lambda: models.linear((5,), 1, bias=False))
    paces = clock("lognormal(1, 0.5)")
    run = begun(case.build(federation), federation, setting, paces=paces)
    assert federation.optima is not None
    start = (starting_rows(federation, setting) - federation.optima).norm()
    left = 1.0
    # With a curvature of 1 and a step size of 0.05, 150 steps leave 5e-4, and a step
    # may take an answer of every client to half of the others.
    while left >= 1e-3 and run.updates < 75 * CLIENTS**2:
        _went_on(run, CLIENTS)
        left = float((run.personal() - federation.optima).norm() / start)
    assert left < 1e-3, f"after {run.updates} answers {left:.2g} of the way is left."


def check_newcomers(case: TimedCase) -> None:
    """Newcomers get finite models, each by its own data alone; nothing is modified."""
    everybody = small_federation(CLIENTS + 2)
    trained = everybody.select(torch.arange(CLIENTS))
    welcome = case.build(everybody).welcome
    if welcome is None:
        raise NotApplicable("it has no `welcome`: newcomers take the best model there.")
    run = _went_on(begun(case.build(trained), trained))
    before = copy.deepcopy(run.state)
    rows = []
    for joining in ([CLIENTS, CLIENTS + 1], [CLIENTS], [CLIENTS + 1]):
        later = everybody.select(torch.tensor(joining))
        module = models.build(Setting().module, 0, torch.float64)
        simulation = Simulation(later, module, batch_size=4, dtype=torch.float64)
        rows.append(welcome(run.state, simulation.at(ROUNDS, purpose="welcome")))
    agree(run.state, before, "`welcome` modified the state")
    shape, wanted = tuple(rows[0].shape), (2, run.personal().shape[1])
    assert shape == wanted, f"models of two newcomers have shape {shape}."
    assert rows[0].isfinite().all(), "models of newcomers are not finite."
    close(torch.cat(rows[1:]), rows[0], "a newcomer gets another model in company")


TIMED_CHECKS: dict[str, Callable[[TimedCase], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_inputs_untouched,
        check_runs_do_not_meet,
        check_same_seed_same_result,
        check_no_global_randomness,
        check_shapes_and_dtype,
        check_info,
        check_relabelling,
        check_one_by_one,
        check_resuming,
        check_without_delays,
        check_work,
        check_nobody_waits,
        check_bad_values,
        check_known_optimum,
        check_newcomers,
    )
}


def _decentralised(mixing: Tensor, *, lr: float = 0.1) -> Algorithm:
    """Everybody takes a step and mixes with the neighbours: x <- W (x - lr g(x))."""
    return Algorithm(
        _Models,
        lambda state, oracle, rng: (
            _Models(mixing.to(state.x) @ (state.x - lr * oracle.grads(state.x))),
            {"floats": 0.0},
        ),
    )


def _exchanging(*, lr: float = 0.1) -> Algorithm:
    """Two clients exchange models: x <- mean of x - lr g(x)."""
    return Algorithm(
        _Models,
        lambda state, oracle, rng: (
            _Models(state.x.mean(0) - lr * oracle.grads(state.x)),
            {"floats": 0.0},
        ),
    )


def _minibatch(sizes: Tensor, *, lr: float = 0.1) -> Algorithm:
    """Everybody takes the mean step: x <- x - lr mean_i g_i(x)."""
    n = len(sizes)
    return all_for_all(torch.full((n, n), 1 / n, dtype=torch.float64), lr=lr)


class _Models(NamedTuple):
    x: Tensor  # (N, D)


TWINS: dict[Maker, Twin] = {
    agraf: Twin(
        _decentralised, {"mix": "matrix", "every": 1, "order": "step_then_mix"}
    ),
    async_adaptive_all_for_one: Twin(
        adaptive_all_for_one, names={"rule": "late", "weighting": "rule"}
    ),
    async_all_for_all: Twin(all_for_all),
    async_ditto: Twin(ditto),
    async_sgd: Twin(_minibatch, {"wait": CLIENTS, "assign": "same", "average": False}),
    loss_network: Twin(_exchanging, clients=2),
    own_pace: Twin(local),
}
"""Factory of a method -> what it is in rounds."""


def check_asynchronous(
    factory: Maker,
    *,
    options: Mapping[str, object] | None = None,
    twin: Twin | None = None,
    skip: Collection[str] = (),
    report: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """What each check found about the methods of a factory.

    Args:
        factory: `factory(*ingredients, **options)` gives an Asynchronous method.
        options: options other than the defaults.
        twin: what it is in rounds where nobody is late; None: that of ours, or not
            known.
        skip: names of checks that the method does not promise to pass.
        report: is told each finding as soon as it is known.

    Raises:
        InputError: for an ingredient, option or check that does not exist.
    """
    case = TimedCase(factory, options or {}, twin or TWINS.get(factory))
    return findings_of(TIMED_CHECKS, case, skip, report)


def is_asynchronous(factory: Callable[..., object]) -> bool:
    """Whether a factory gives methods that need not wait.

    Raises:
        InputError: for ingredients that do not exist.
    """
    made = Case(cast("Factory", factory)).made(small_federation())
    try:
        return isinstance(factory(*made.values()), Asynchronous)
    except Exception:  # of any kind, which the checks of algorithms will tell
        return False

"""What every algorithm must do, as checks that anybody can run on theirs.

    for finding in check_algorithm(my_factory):
        print(*finding)

The ingredients of a factory are its positional parameters and are made by their names
(`coterie.ingredients`); its options keep their defaults unless given. A check is a
function of a `Case` that raises AssertionError with a sentence when the algorithm fails
it, and `NotApplicable` when it asks for something this kind of method does not promise.
The federations they run on are in `conformance_cases`.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import models
from .algorithms.local import local
from .checks import InputError, suggestion
from .conformance_cases import (
    CLIENTS,
    ROUNDS,
    Case,
    Factory,
    Setting,
    Trace,
    agree,
    close,
    common_optimum,
    draws_nothing_global,
    has_shape_and_dtype,
    leaves,
    relabelled,
    same,
    shared,
    small_federation,
    starting_rows,
    trace,
    welcomed,
)
from .deploy.remote import SiteError
from .record import pack, unpack
from .types import Info, Oracle, State

__all__ = [
    "CHECKS",
    "Case",
    "Factory",
    "Finding",
    "NotApplicable",
    "Setting",
    "Trace",
    "check_algorithm",
    "common_optimum",
    "findings_of",
    "leaves",
    "relabelled",
    "small_federation",
    "starting_rows",
    "trace",
]


Tested = TypeVar("Tested")
"""What a check is run on."""


class NotApplicable(Exception):
    """The check asks for something that this kind of method does not promise."""


class Finding(NamedTuple):
    """What one check found."""

    check: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str


def check_inputs_untouched(case: Case) -> None:
    """Starting models, ingredients and earlier states are not modified."""
    federation, setting = small_federation(), Setting()
    given = case.made(federation)
    x = starting_rows(federation, setting)
    before = {name: value.clone() for name, value in {**given, "x": x}.items()}
    algorithm = case.build(federation, instead=given)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        copy = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in leaves(state).items()
        }
        result = algorithm.step(state, oracle, rng)
        for name, value in leaves(state).items():
            assert same(value, copy[name]), f"`{name}` of the state was modified."
        return result

    trace(algorithm._replace(step=step), federation, setting, x=x)
    for name, value in {**given, "x": x}.items():
        assert same(value, before[name]), f"`{name}` was modified."


def check_same_seed_same_result(case: Case) -> None:
    """Two runs are equal bit by bit, whatever the global generators hold."""
    federation = small_federation()
    runs = []
    for global_seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(global_seed)
            runs.append(trace(case.build(federation), federation, Setting()))
    agree(runs[0].states[-1], runs[1].states[-1], "two runs with the same seed")
    assert same(runs[0].personal, runs[1].personal), (
        "two runs with the same seed give different personal models."
    )


def check_no_global_randomness(case: Case) -> None:
    """A run takes nothing from the global generators of torch and NumPy."""
    federation = small_federation()
    draws_nothing_global(
        lambda: trace(case.build(federation), federation, Setting()),
        "the `rng` of `step`",
    )


def check_shapes_and_dtype(case: Case) -> None:
    """Models keep shape (N, D) and precision, and so does all of the state."""
    federation = small_federation()
    for dtype in (torch.float32, torch.float64):
        setting = Setting(dtype=dtype)
        run = trace(case.build(federation), federation, setting)
        x = starting_rows(federation, setting)
        has_shape_and_dtype(run.personal, run.states[-1], x)


def check_relabelling(case: Case) -> None:
    """Relabelling the clients relabels the result."""
    federation, setting = small_federation(), Setting()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    other = relabelled(federation, order)
    here = trace(case.build(federation), federation, setting).personal
    there = trace(case.build(other), other, setting).personal
    close(there, here[order], "relabelled clients get other models")


def check_identical_clients(case: Case) -> None:
    """Clients with the same data, draws and start keep the same model."""
    twins = relabelled(small_federation(), torch.tensor([2] * CLIENTS))
    models_now = trace(case.build(twins), twins, Setting()).personal
    close(models_now, models_now[:1], "identical clients drift apart")


def check_local_limit(case: Case) -> None:
    """Identity weights, or being alone, give local training."""
    if not {"weights", "precision"} & set(case.ingredients):
        raise NotApplicable("the method takes neither `weights` nor `precision`.")
    effective = {**case.defaults, **case.options}
    if "lr" not in effective:
        raise NotApplicable("the method has no option `lr`.")
    shared = {n: v for n, v in effective.items() if n in Case(local).defaults}
    setting = Setting(batch_size=0)  # or else the two would draw other minibatches
    everybody = small_federation()
    alone = everybody.only(0)
    pairs = [(alone, case.build(alone))]
    if "weights" in case.ingredients:
        nobody = torch.eye(len(everybody))
        pairs.append((everybody, case.build(everybody, instead={"weights": nobody})))
    for federation, algorithm in pairs:
        ours = trace(algorithm, federation, setting).personal
        theirs = trace(Case(local, shared).build(federation), federation, setting)
        close(ours, theirs.personal, "without others it is not local training")


def check_one_client(case: Case) -> None:
    """One client alone is a federation too."""
    alone = small_federation().only(1)
    run = trace(case.build(alone), alone, Setting())
    shape = tuple(run.personal.shape)
    assert shape[0] == 1, f"models of one client have shape {shape}."
    assert run.personal.isfinite().all(), "the model of one client is not finite."


def check_resuming(case: Case) -> None:
    """The state survives save and load, and resuming equals not stopping."""
    federation, setting = small_federation(), Setting()
    whole = trace(case.build(federation), federation, setting)
    half = ROUNDS // 2
    file = io.BytesIO()
    torch.save(pack(whole.states[half]), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    fresh = case.build(federation)  # as in a new process
    start = fresh.init(starting_rows(federation, setting))
    assert leaves(start).keys() == leaves(whole.states[half]).keys(), (
        "the state of a later round has other parts than that of `init`."
    )
    state = unpack(loaded, start)
    rest = trace(fresh, federation, setting, start=(half, state))
    agree(rest.states[-1], whole.states[-1], "resuming differs from not stopping")
    assert same(rest.personal, whole.personal), (
        "resuming gives other personal models than not stopping."
    )


def check_client_by_client(case: Case) -> None:
    """All clients at once equal one client after the other."""
    federation = small_federation()
    at_once = trace(case.build(federation), federation, Setting())
    in_turn = trace(case.build(federation), federation, Setting(loop=True))
    close(at_once.personal, in_turn.personal, "all at once and one by one")


def check_sites(case: Case) -> None:
    """Clients at sites, asked by message, give the same models."""
    federation = small_federation()
    here = trace(case.build(federation), federation, Setting())
    own = case.factory.__module__.partition(".")[0] + "."
    there = Setting(sites=("coterie.", own))
    try:
        remote = trace(case.build(federation), federation, there)
    except (InputError, SiteError) as error:
        raise AssertionError(f"a site cannot run it: {error}") from error
    close(here.personal, remote.personal, "a simulation and sites")


_ACTIVE = torch.tensor([True, False, True, True, False, True])


def check_inactive_rows(case: Case) -> None:
    """The personal model of a client that takes no part does not change.

    Methods whose clients share models are excepted: a new global model is new for
    everybody. They are known by two clients having the same one but for rounding, be it
    where these do not answer and so cannot tune it before use.
    """
    if "radius" in case.ingredients:
        raise NotApplicable("models are tied to each other in this method.")
    federation, setting = small_federation(), Setting()
    everybody = trace(case.build(federation), federation, setting, rounds=1)
    models_now, state = everybody.personal, everybody.states[-1]
    some = trace(
        case.build(federation),
        federation,
        setting,
        rounds=1,
        start=(1, state),
        active=_ACTIVE,
    )
    for rows in (models_now, some.personal, *leaves(state).values()):
        if isinstance(rows, Tensor) and rows.shape == models_now.shape:
            if shared(rows):
                raise NotApplicable("clients share models in this method.")
    algorithm = case.build(federation)
    before = trace(algorithm, federation, setting, rounds=0, active=_ACTIVE).personal
    after = trace(algorithm, federation, setting, active=_ACTIVE).personal
    assert after.isfinite().all(), "models are not finite when some take no part."
    changed = (before != after).any(1)
    wrong = (changed & ~_ACTIVE).nonzero()[:, 0].tolist()
    assert not wrong, f"models of inactive clients {wrong} changed."
    idle = (~changed & _ACTIVE).nonzero()[:, 0].tolist()
    assert not idle, f"models of active clients {idle} did not change."


def check_inactive_data(case: Case) -> None:
    """Data of clients that take no part are not used: they may even be NaN."""
    federation, setting = small_federation(), Setting()
    features = federation.features.clone()
    for client in (~_ACTIVE).nonzero()[:, 0].tolist():
        first, size = federation.train.start[client], federation.train.size[client]
        features[federation.train.index[first : first + size]] = math.nan
    without = replace(federation, features=features)
    expected = trace(case.build(federation), federation, setting, active=_ACTIVE)
    # Ingredients are made before training, when all are there.
    found = trace(case.build(federation), without, setting, active=_ACTIVE)
    assert found.personal.isfinite().all(), "data of inactive clients were used."
    close(found.personal, expected.personal, "data of inactive clients matter")


def _bad_values(name: str, default: object) -> list[Any]:
    """Values that an option with this name and default cannot mean."""
    if isinstance(default, bool):
        return []
    if isinstance(default, float):
        wrong = [math.nan, math.inf]
        return [-1.0, *wrong] if name.endswith("lr") else wrong
    if isinstance(default, int):
        return [-1, 0] if name == "steps" else [-1]
    return ["no such word"] if isinstance(default, str) else []


def check_bad_options(case: Case) -> None:
    """What an option cannot mean is refused with its name and value."""
    federation = small_federation()
    for name, default in case.defaults.items():
        for value in _bad_values(name, default):
            try:
                case.build(federation, options={name: value})
            except InputError as error:
                text = str(error)
                assert name in text, (
                    f"the refusal of {name}={value!r} names no `{name}`."
                )
                assert str(value) in text, f"the refusal of {name}={value!r} hides it."
            else:
                raise AssertionError(f"{name}={value!r} was not refused.")


def check_bad_ingredients(case: Case) -> None:
    """Ingredients for another number of clients, or with NaN, are refused by name."""
    federation, setting = small_federation(), Setting()
    larger = case.made(small_federation(CLIENTS + 1))
    x = starting_rows(federation, setting)
    for name, value in case.made(federation).items():
        wrong = {"made for 7 clients instead of 6": larger[name]}
        if value.is_floating_point():
            spoilt = value.clone()
            spoilt[-1] = math.nan
            wrong["with NaN"] = spoilt
        for what, bad in wrong.items():
            try:
                case.build(federation, instead={name: bad}).init(x)
            except InputError as error:
                named = f"`{name}`" in str(error)
                assert named, f"the refusal of `{name}` {what} does not name it."
            else:
                raise AssertionError(f"`{name}` {what} was not refused.")


def check_known_optimum(case: Case) -> None:
    """Where all clients have the same best model, the algorithm arrives there."""
    federation = common_optimum()
    setting = Setting(batch_size=0, module=lambda: models.linear((5,), 1, bias=False))
    run = trace(case.build(federation), federation, setting, rounds=200)
    assert federation.optima is not None
    start = (starting_rows(federation, setting) - federation.optima).norm()
    left = float((run.personal - federation.optima).norm() / start)
    # With a curvature of 1 and a step size of 0.05, 200 steps leave 4e-5.
    assert left < 1e-3, f"after 200 rounds {left:.2g} of the way is left."


def check_info(case: Case) -> None:
    """Every round says what it sent, and tells only finite things."""
    federation = small_federation()
    for info in trace(case.build(federation), federation, Setting()).infos:
        assert "floats" in info, "the info of a round has no `floats`."
        floats = float(info["floats"])
        assert math.isfinite(floats) and floats >= 0, f"`floats` is {floats}."
        for name, value in info.items():
            finite = bool(torch.as_tensor(value).isfinite().all())
            assert finite, f"`{name}` in the info of a round is not finite."
        if "weights" in info:
            shape = tuple(torch.as_tensor(info["weights"]).shape)
            wanted = (len(federation), len(federation))
            assert shape == wanted, f"`weights` has shape {shape}, not {wanted}."


def check_newcomers(case: Case) -> None:
    """Newcomers get finite models, each by its own data alone; nothing is modified."""
    everybody = small_federation(CLIENTS + 2)
    places = torch.arange(CLIENTS + 2)
    trained = everybody.select(places[:CLIENTS])
    if case.build(everybody).welcome is None:
        raise NotApplicable("it has no `welcome`: newcomers take the best model there.")
    for dtype in (torch.float32, torch.float64):
        setting = Setting(dtype=dtype)
        run = trace(case.build(trained), trained, setting)
        state = run.states[-1]
        before = copy.deepcopy(leaves(state))
        given = case.made(everybody)
        kept = copy.deepcopy(given)
        both = welcomed(case, state, everybody, CLIENTS, setting, instead=given)
        shape, wanted = tuple(both.shape), (2, run.personal.shape[1])
        assert shape == wanted, f"models of two newcomers have shape {shape}."
        assert both.dtype == dtype, f"{dtype} became {both.dtype} for newcomers."
        assert both.isfinite().all(), "models of newcomers are not finite."
        for name, value in leaves(state).items():
            assert same(value, before[name]), f"`welcome` modified `{name}`."
        for name, value in given.items():
            assert same(value, kept[name]), f"`welcome` modified `{name}`."
    for j in range(2):
        alone = everybody.select(
            torch.cat([places[:CLIENTS], places[CLIENTS + j, None]])
        )
        one = welcomed(case, state, alone, CLIENTS, setting)
        close(one, both[j, None], "a newcomer gets another model in company")


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        check_inputs_untouched,
        check_same_seed_same_result,
        check_no_global_randomness,
        check_shapes_and_dtype,
        check_info,
        check_one_client,
        check_relabelling,
        check_identical_clients,
        check_client_by_client,
        check_sites,
        check_resuming,
        check_local_limit,
        check_inactive_rows,
        check_inactive_data,
        check_bad_options,
        check_bad_ingredients,
        check_known_optimum,
        check_newcomers,
    )
}


def check_algorithm(
    factory: Factory,
    *,
    options: Mapping[str, object] | None = None,
    skip: Collection[str] = (),
    report: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """What each check found about the algorithms of a factory.

    Args:
        factory: `factory(*ingredients, **options)` gives an Algorithm.
        options: options other than the defaults.
        skip: names of checks that the method does not promise to pass.
        report: is told each finding as soon as it is known.

    Raises:
        InputError: for an ingredient, option or check that does not exist.
    """
    return findings_of(CHECKS, Case(factory, options or {}), skip, report)


def findings_of(
    checks: Mapping[str, Callable[[Tested], None]],
    case: Tested,
    skip: Collection[str],
    report: Callable[[Finding], None] | None,
) -> list[Finding]:
    """What each of these checks found; see `check_algorithm`."""
    for name in skip:
        if name not in checks:
            raise InputError(f"there is no check {name!r}.{suggestion(name, checks)}")
    findings = []
    for name, check in checks.items():
        finding = _found(name, check, case, name in skip)
        findings.append(finding)
        if report is not None:
            report(finding)
    return findings


def _found(
    name: str, check: Callable[[Tested], None], case: Tested, skipped: bool
) -> Finding:
    if skipped:
        return Finding(name, "skipped", "skipped on request.")
    try:
        check(case)
    except NotApplicable as reason:
        return Finding(name, "skipped", str(reason))
    except AssertionError as error:
        return Finding(name, "failed", str(error))
    except Exception as error:
        # Somebody else's algorithm may raise anything, and the other checks go on.
        return Finding(name, "failed", f"{type(error).__name__}: {error}")
    return Finding(name, "passed", (check.__doc__ or "").split("\n")[0])

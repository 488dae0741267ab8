"""Checks of what methods promise in both forms: in rounds and in time."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checks import InputError
from ..engine.clocks import clock
from ..engine.rounds import init_oracle
from ..models import zoo as models
from ..records import pack, unpack
from ..study.ingredients import OF_MODELS
from ..types import EVERYBODY, Algorithm, Arrivals, Info, Oracle, State
from .cases import (
    EVENTS,
    ROUNDS,
    Case,
    NotApplicable,
    Setting,
    advance,
    agree,
    close,
    event_loop,
    flow_of,
    leaves,
    newcomer_models,
    same,
    simulation_of,
    starting_rows,
    trace_case,
    trace_rounds,
    trajectory,
)
from .federations import CLIENTS, common_optimum, small_federation


def check_inputs_untouched(case: Case) -> None:
    """Starting models, ingredients, answers and earlier states are not modified."""
    federation, setting = small_federation(), Setting()
    given = case.make_ingredients(federation)
    x = starting_rows(federation, setting)
    before = {name: value.clone() for name, value in {**given, "x": x}.items()}
    algorithm = case.build(federation, instead=given)
    if case.face == "rounds":
        trajectory(_with_step_watched(algorithm), federation, setting, x=x)
    else:
        run = advance(event_loop(_with_arrive_watched(algorithm), federation, x=x))
        state = copy.deepcopy(run.state)
        run.personal()
        flow_of(algorithm).info(run.state)
        agree(run.state, state, "`personal` or `info` modified the state")
    for name, value in {**given, "x": x}.items():
        assert same(value, before[name]), f"`{name}` was modified."


def _with_step_watched(algorithm: Algorithm) -> Algorithm:
    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        copy = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in leaves(state).items()
        }
        result = algorithm.step(state, oracle, rng)
        for name, value in leaves(state).items():
            assert same(value, copy[name]), f"`{name}` of the state was modified."
        return result

    return algorithm._replace(step=step)


def _with_arrive_watched(algorithm: Algorithm) -> Algorithm:
    flow = flow_of(algorithm)

    def arrive(state: State, now: Arrivals) -> list[int]:
        kept = [answer.clone() for answer in now.answers]
        begin = list(flow.arrive(state, now))
        for answer, old in zip(now.answers, kept, strict=True):
            assert same(answer, old), "`arrive` modified an answer."
        return begin

    return algorithm._replace(flow=flow._replace(arrive=arrive))


def check_same_seed_same_result(case: Case) -> None:
    """Two runs are equal bit by bit, and global generators have no effect."""
    first = case.usual
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch.initial_seed() + 1)
        second = trace_case(case, small_federation())
    agree(first.states[-1], second.states[-1], "two runs with the same seed")
    assert same(first.personal, second.personal), (
        "two runs with the same seed give different personal models."
    )


def check_no_global_randomness(case: Case) -> None:
    """A run draws nothing from the global generators of torch and NumPy."""
    instead = "`rng`" if case.face == "rounds" else "that of the arrivals"
    torch_before = torch.get_rng_state()
    numpy_before = repr(np.random.get_state())  # noqa: NPY002
    trace_case(case, small_federation())
    assert torch.equal(torch.get_rng_state(), torch_before), (
        f"the run drew from torch's global generator; use {instead}."
    )
    assert repr(np.random.get_state()) == numpy_before, (  # noqa: NPY002
        f"the run drew from NumPy's global generator; use {instead}."
    )


def check_shapes_and_dtype(case: Case) -> None:
    """Models keep shape (N, D) and precision, and the state keeps its precision."""
    for dtype in (torch.float32, torch.float64):
        run = case.single if dtype == torch.float32 else case.usual
        wanted = tuple(starting_rows(small_federation(), Setting()).shape)
        personal, shape = run.personal, tuple(run.personal.shape)
        assert shape == wanted, f"models {wanted} became {shape}."
        assert personal.dtype == dtype, f"{dtype} became {personal.dtype}."
        assert personal.isfinite().all(), "models are not finite."
        for name, value in leaves(run.states[-1]).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                assert value.dtype == dtype, f"`{name}` is {value.dtype}, not {dtype}."


def check_info(case: Case) -> None:
    """The info of rounds is finite and has the right shapes."""
    for info in case.usual.infos:
        for name, value in info.items():
            finite = bool(torch.as_tensor(value).to_dense().isfinite().all())
            assert finite, f"`{name}` in the info is not finite."
        if "weights" in info:
            shape = tuple(torch.as_tensor(info["weights"]).shape)
            wanted = (CLIENTS, CLIENTS)
            assert shape == wanted, f"`weights` has shape {shape}, not {wanted}."
        for name in {"member", "uses"} & info.keys():
            labels = torch.as_tensor(info[name])
            whole = not labels.is_floating_point() and bool((labels >= EVERYBODY).all())
            fits = whole and tuple(labels.shape) == (CLIENTS,)
            rule = f"{CLIENTS} whole numbers, -2 or more"
            assert fits, f"`{name}` in the info must be {rule}, got {labels}."


def check_one_client(case: Case) -> None:
    """A federation of one client works."""
    if "mixing" in case.ingredients:
        raise NotApplicable("a graph has two nodes at least.")
    alone = small_federation().only(1)
    run = trace_case(case, alone)
    shape = tuple(run.personal.shape)
    assert shape[0] == 1, f"models of one client have shape {shape}."
    assert run.personal.isfinite().all(), "the model of one client is not finite."


def check_relabelling(case: Case) -> None:
    """Relabelling the clients relabels the result."""
    federation = small_federation()
    if case.face == "time" and flow_of(case.build(federation)).starts is not None:
        raise NotApplicable("it begins with a client by its place, and so walks on.")
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    other = federation.select(order)
    # Graphs depend on positions, so they are relabelled and not computed again.
    moved = {
        name: matrix.index_select(0, order).index_select(1, order)
        for name, matrix in case.make_ingredients(federation).items()
        if name == "mixing"
    }
    there = trace_case(case, other, instead=moved).personal
    close(there, case.usual.personal[order], "relabelled clients get other models")


def check_client_by_client(case: Case) -> None:
    """All clients at once equal one client after the other."""
    federation, in_turn = small_federation(), Setting(loop=True)
    if case.face == "rounds":
        found = trace_case(case, federation, in_turn).personal
        close(case.usual.personal, found, "all at once and one by one")
        return
    run = event_loop(case.build(federation), federation, in_turn, grouped=False)
    for event in case.usual.events:
        same_event = run.step()[:4] == event
        assert same_event, "computed together or one by one, other clients answer."
    close(run.personal(), case.usual.personal, "together and one by one")


def check_resuming(case: Case) -> None:
    """A run can be saved and resumed at any point, with the same result."""
    if case.face == "time":
        return _resumes_in_time(case)
    federation, setting, whole = small_federation(), Setting(), case.usual
    half = ROUNDS // 2
    fresh = case.build(federation)  # as in a new process
    begin = init_oracle(simulation_of(federation, setting))
    start = fresh.init(starting_rows(federation, setting), begin)
    assert leaves(start).keys() == leaves(whole.states[half]).keys(), (
        "the state of a later round has other parts than that of `init`."
    )
    state = _from_file(whole.states[half], start)
    rest = trajectory(fresh, federation, setting, start=(half, state))
    agree(rest.states[-1], whole.states[-1], "resuming differs from not stopping")
    assert same(rest.personal, whole.personal), (
        "resuming gives other personal models than not stopping."
    )


def _resumes_in_time(case: Case) -> None:
    federation, whole = small_federation(), case.usual
    stopped = event_loop(case.build(federation), federation)
    fresh = case.build(federation)  # as in a new process
    like = event_loop(fresh, federation).moment()
    for first, events in ((0, 1), (1, EVENTS // 2)):
        advance(stopped, events - first)
        assert leaves(like.state).keys() == leaves(stopped.state).keys(), (
            "the state has other parts later than after `init`."
        )
        rest = event_loop(fresh, federation, start=_from_file(stopped.moment(), like))
        for event in whole.events[events:]:
            assert rest.step()[:4] == event, "after resuming, other clients answer."
        agree(rest.state, whole.states[-1], "resuming differs from not stopping")
        assert [*rest.sent] == whole.sent, "resuming counts other messages."
        assert same(rest.personal(), whole.personal), (
            "resuming gives other personal models than not stopping."
        )


def _from_file(state: State, like: State) -> State:
    file = io.BytesIO()
    torch.save(pack(state), file)
    file.seek(0)
    return unpack(torch.load(file, weights_only=True), like)


def _bad_values(name: str, default: object) -> list[Any]:
    """Values that an option with this name and default must refuse."""
    if isinstance(default, bool):
        return []
    if isinstance(default, float):
        wrong = [math.nan, math.inf]
        return [-1.0, *wrong] if name.endswith("lr") else wrong
    if isinstance(default, int):
        return [-1, 0] if name == "steps" else [-1]
    return ["no such word"] if isinstance(default, str) else []


def check_bad_options(case: Case) -> None:
    """Bad values of options are refused, and the error names option and value."""
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
    """Wrong ingredients and those with NaN are refused, and the error names them."""
    federation, setting = small_federation(), Setting()
    other = case.make_ingredients(small_federation(CLIENTS + 1), _wider)
    x = starting_rows(federation, setting)
    for name, value in case.make_ingredients(federation).items():
        of_model = name in OF_MODELS
        about = "a wider model" if of_model else "7 clients instead of 6"
        wrong = {f"made for {about}": other[name]}
        if value.is_floating_point():
            spoilt = value.to_dense().clone()
            spoilt[-1] = math.nan
            wrong["with NaN"] = spoilt.to_sparse() if value.is_sparse else spoilt
        for what, bad in wrong.items():
            try:
                method = case.build(federation, instead={name: bad})
                if case.face == "time":
                    flow_of(method).init(x)
                else:
                    method.init(x, init_oracle(simulation_of(federation, setting)))
            except InputError as error:
                named = f"`{name}`" in str(error)
                assert named, f"the refusal of `{name}` {what} does not name it."
            else:
                raise AssertionError(f"`{name}` {what} was not refused.")


def _wider() -> nn.Module:
    """A model with more columns than the usual one."""
    return models.mlp((4,), 3, hidden=(5,), activation="tanh")


def check_known_optimum(case: Case) -> None:
    """If all clients have the same best model, the method finds it."""
    federation = common_optimum()
    setting = Setting(batch_size=0, module=lambda: models.linear((5,), 1, bias=False))
    try:
        options = case.known_optimum
        algorithm = case.build(federation, module=setting.module, options=options)
    except InputError as error:
        if not set(OF_MODELS) & set(case.ingredients):
            raise
        raise NotApplicable(f"it is not for a linear model: {error}") from error
    optima = federation.optima
    assert optima is not None
    x = starting_rows(federation, setting)
    start = (x - optima).norm()

    def distance_left(personal: Tensor) -> float:
        return float((personal - optima).norm() / start)

    # With a curvature of 2 and a step size of 0.05, 70 steps reduce the distance to
    # 6e-4. With a momentum of 0.9, it is 0.9^(t / 2) at best: 2e-3 after 120 rounds,
    # 3e-6 after 240. In time, a step may need answers of each client to half of the
    # others.
    if case.face == "rounds":
        simulation = simulation_of(federation, setting)
        state, t, last, rest = None, 0, 240, 1.0
        while t < last:
            begin, t = None if state is None else (t, state), t + 5
            some = trace_rounds(algorithm, simulation, x, t, begin)
            state, before, rest = some.states[-1], rest, distance_left(some.personal)
            if before >= 1e-3 > rest:  # one that arrives early must stay there
                last = min(last, 2 * t)
        assert rest < 1e-3, f"after {t} rounds {rest:.2g} of the way is left."
        return
    run = event_loop(algorithm, federation, setting, paces=clock("lognormal(1, 0.5)"))
    rest = 1.0
    while rest >= 1e-3 and run.updates < 75 * CLIENTS**2:
        rest = distance_left(advance(run, CLIENTS).personal())
    assert rest < 1e-3, f"after {run.updates} answers {rest:.2g} of the way is left."


def check_newcomers(case: Case) -> None:
    """Newcomers get finite models from their own data, and nothing is modified."""
    everybody = small_federation(CLIENTS + 2)
    places = torch.arange(CLIENTS + 2)
    for dtype in (torch.float32, torch.float64):
        run = case.single if dtype == torch.float32 else case.usual
        setting, state = Setting(dtype=dtype), run.states[-1]
        before = copy.deepcopy(leaves(state))
        given = case.make_ingredients(everybody)
        kept = copy.deepcopy(given)
        both = newcomer_models(case, state, everybody, CLIENTS, setting, instead=given)
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
        one = newcomer_models(case, state, alone, CLIENTS, setting)
        close(one, both[j, None], "a newcomer gets another model in company")

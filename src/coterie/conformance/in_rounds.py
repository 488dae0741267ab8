"""Checks of what methods promise in rounds alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..algorithms.local import local
from ..checks import InputError
from ..clients.groups import block
from ..data.federation import Federation
from ..engine.rounds import Round, run_rounds
from ..engine.states import changes_in_place, rows_of, whole
from ..privacy.mechanisms import Mechanism, make_private
from ..privacy.mechanisms.dry_run import (
    CallPlan,
    Refusal,
    declaration,
    is_within,
    plan_calls,
)
from ..types import Algorithm, ClientsInRounds, Releases, State
from .cases import (
    ACTIVE,
    ROUNDS,
    Case,
    NotApplicable,
    Setting,
    Trace,
    close,
    equal_rows,
    has_equal_rows,
    leaves,
    same,
    simulation_of,
    starting_rows,
    trace_rounds,
    trajectory,
)
from .divided import Threads, run_divided
from .federations import CLIENTS, small_federation


def check_identical_clients(case: Case) -> None:
    """Clients with the same data, draws and start keep the same model."""
    twins = small_federation().select(torch.tensor([2] * CLIENTS))
    models_now = trajectory(case.build(twins), twins, Setting()).personal
    close(models_now, models_now[:1], "identical clients drift apart")


def check_local_limit(case: Case) -> None:
    """Identity weights, or a single client, give local training."""
    if not {"weights", "precision"} & set(case.ingredients):
        raise NotApplicable("the method takes neither `weights` nor `precision`.")
    effective = {**case.defaults, **case.options}
    if "lr" not in effective:
        raise NotApplicable("the method has no option `lr`.")
    shared = {n: v for n, v in effective.items() if n in Case(local).defaults}
    setting = Setting(batch_size=0)  # or else the two would draw other minibatches
    everybody = small_federation()
    alone = everybody.only(0)
    # A graph has two nodes at least.
    pairs = [] if "mixing" in case.ingredients else [(alone, case.build(alone))]
    if "weights" in case.ingredients:
        nobody = torch.eye(len(everybody))
        pairs.append((everybody, case.build(everybody, instead={"weights": nobody})))
    if not pairs:
        raise NotApplicable("nobody is alone on a graph.")
    for federation, algorithm in pairs:
        ours = trajectory(algorithm, federation, setting).personal
        theirs = trajectory(Case(local, shared).build(federation), federation, setting)
        close(ours, theirs.personal, "without others it is not local training")


_HALF = ROUNDS // 2


def _all_and_then_some(
    algorithm: Algorithm, simulation: ClientsInRounds, x: Tensor
) -> tuple[Trace, Trace]:
    """A run: rounds in which all take part, and then rounds in which only some do."""
    first = trace_rounds(algorithm, simulation, x, _HALF)
    start = _HALF, first.states[-1]
    return first, trace_rounds(algorithm, simulation, x, start=start, active=ACTIVE)


def check_divided(case: Case) -> None:
    """Clients divided among processes get the same models, and send only by verbs."""
    federation, setting = small_federation(), Setting()
    x = starting_rows(federation, setting)

    def run(group: Threads) -> tuple[Trace, Trace]:
        mine = block(CLIENTS, group)
        own = federation.select(torch.arange(CLIENTS)[mine])
        simulation = simulation_of(own, setting, group)
        found = _all_and_then_some(case.build(federation), simulation, x[mine])
        whole(found[1].states[-1], group, CLIENTS)  # refuses what is not marked
        return found

    everybody = simulation_of(federation, setting)
    together = _all_and_then_some(case.build(federation), everybody, x)
    for size in (2, 3, CLIENTS):
        halves = zip(*run_divided(run, size), strict=True)
        for parts, one in zip(halves, together, strict=True):
            models_now = torch.cat([part.personal for part in parts])
            close(models_now, one.personal, f"divided among {size} processes")
            counts = zip(*(part.sent for part in parts), strict=True)
            counted = [sum(each) for each in counts] == one.sent
            assert counted, "what is sent differs in a divided federation."


def check_inactive_rows(case: Case) -> None:
    """The personal model of an inactive client does not change.

    Methods with a shared model need not pass this check, because all clients get the
    new global model. We recognise such a method by two clients with exactly equal
    models. In some methods, clients tune a shared model before use. In this case,
    models are equal only as long as clients do not answer.
    """
    if "radius" in case.ingredients:
        raise NotApplicable("models are tied to each other in this method.")
    federation, setting = small_federation(), Setting()
    algorithm, state = case.build(federation), case.usual.states[1]
    simulation, x = (
        simulation_of(federation, setting),
        starting_rows(federation, setting),
    )
    models_now, of_some = (
        trace_rounds(algorithm, simulation, x, 1, (1, state), active).personal
        for active in (None, ACTIVE)
    )
    for rows in (models_now, of_some, *leaves(state).values()):
        # This includes several models or directions of each client, (n, C, D).
        if isinstance(rows, Tensor) and rows.shape[-1:] == models_now.shape[1:]:
            if (
                rows.dim() > 1
                and len(rows) == CLIENTS
                and has_equal_rows(rows.flatten(1))
            ):
                raise NotApplicable("clients share models in this method.")
    before = trace_rounds(algorithm, simulation, x, 0, active=ACTIVE).personal
    after = case.partial.personal
    assert after.isfinite().all(), "models are not finite when some take no part."
    changed = (before != after).any(1)
    wrong = (changed & ~ACTIVE).nonzero()[:, 0].tolist()
    assert not wrong, f"models of inactive clients {wrong} changed."
    idle = (~changed & ACTIVE).nonzero()[:, 0].tolist()
    assert not idle, f"models of active clients {idle} did not change."


def check_inactive_state(case: Case) -> None:
    """The rows of an inactive client do not change in any field of the state.

    The check looks at every field of type `Rows`. If two clients have equal rows,
    before and after, this row belongs to all clients or to a group, and may change.
    """
    if "radius" in case.ingredients:
        raise NotApplicable("models are tied to each other in this method.")
    federation, setting = small_federation(), Setting()
    simulation, x = (
        simulation_of(federation, setting),
        starting_rows(federation, setting),
    )
    start = _HALF, case.usual.states[_HALF]
    algorithm = case.build(federation)
    run = trace_rounds(algorithm, simulation, x, _HALF + 1, start, ACTIVE)
    after = dict(rows_of(run.states[-1]))
    for name, old in rows_of(start[1]):
        old, new = (rows.double().reshape(CLIENTS, -1) for rows in (old, after[name]))
        wrong = [
            i for i in (~ACTIVE).nonzero()[:, 0].tolist() if _changed_alone(i, old, new)
        ]
        assert not wrong, f"`{name}` of inactive clients {wrong} changed."


def _changed_alone(i: int, old: Tensor, new: Tensor) -> bool:
    """Whether a value in row i changed that no other row has."""
    changed = ~torch.isclose(old[i], new[i], rtol=0.0, atol=0.0, equal_nan=True)
    if not changed.any():
        return False
    both = equal_rows(old[:, changed])[i] & equal_rows(new[:, changed])[i]
    # A single number, such as the number of a group, may by chance equal that of
    # another client.
    return int(both.sum()) < (1 if int(changed.sum()) > 1 else CLIENTS - 1)


def check_inactive_data(case: Case) -> None:
    """Data of inactive clients are not used, and may even be NaN."""
    federation, setting = small_federation(), Setting()
    features = federation.features.clone()
    for client in (~ACTIVE).nonzero()[:, 0].tolist():
        first, size = federation.train.start[client], federation.train.size[client]
        features[federation.train.index[first : first + size]] = math.nan
    without = replace(federation, features=features)
    # Ingredients are computed before training, with all clients.
    found = trajectory(case.build(federation), without, setting, active=ACTIVE)
    assert found.personal.isfinite().all(), "data of inactive clients were used."
    close(found.personal, case.partial.personal, "data of inactive clients matter")


_MANY = 12
"""Rounds in place, so that every client is away at times, and returns."""


def check_in_place(case: Case) -> None:
    """Rounds in place, with the rows of some clients, give the same state."""
    if not changes_in_place(case.usual.states[0]):
        raise NotApplicable("fields with rows are not all `OwnRows` or `SameRow`.")
    federation, setting = small_federation(), Setting()
    algorithm, x = case.build(federation), starting_rows(federation, setting)
    expected = list(_some_take_part(algorithm, federation, x))[-1]
    before = x.clone()
    for found in _some_take_part(algorithm, federation, x, in_place=True):
        assert found.change is not None, "rounds are not computed in place."
        if found.t == _MANY // 2:
            start = found.t, copy.deepcopy(found.state)
    assert torch.equal(x, before), "rounds in place change the starting models."
    again = _some_take_part(algorithm, federation, x, in_place=True, start=start)
    for last, why in ((found, "in place"), (list(again)[-1], "resumed in place")):
        _agree_nearly(last.state, expected.state, f"rounds {why}: the state")
        _agree_nearly(last.info, expected.info, f"rounds {why}: `info`")
        assert last.traffic == expected.traffic, f"rounds {why} send another number."


def _some_take_part(
    algorithm: Algorithm, federation: Federation, x: Tensor, **options: Any
) -> Iterator[Round]:
    """Rounds in which random clients take part, half of all."""
    simulation = simulation_of(federation, Setting())
    options |= {"rounds": _MANY, "participation": 0.5}
    return run_rounds(algorithm, simulation, x, **options)


def _agree_nearly(found: State, expected: State, why: str) -> None:
    one, two = leaves(found), leaves(expected)
    assert one.keys() == two.keys(), f"{why} has other parts."
    for name, value in two.items():
        other = one[name]
        if isinstance(other, Tensor) and isinstance(value, Tensor):
            if value.is_floating_point() and value.numel():
                close(other, value, f"{why}, `{name}`")
                continue
        assert same(other, value), f"{why}: `{name}` differs."


def check_without_noise(case: Case) -> None:
    """Private training without clipping and noise gives the same models."""
    federation, setting = small_federation(), Setting()
    simulation, x = (
        simulation_of(federation, setting),
        starting_rows(federation, setting),
    )
    algorithm = case.build(federation)._replace(releases=None)
    try:
        foreseen = _dry_run(algorithm, x.shape[1])
    except InputError as refusal:
        raise NotApplicable(str(refusal)) from None
    private = make_private(
        algorithm, foreseen, Mechanism(math.inf, 0.0), simulation.names
    )
    found = _all_and_then_some(private, simulation, x)
    expected = _all_and_then_some(algorithm, simulation, x)
    for one, other in zip(found, expected, strict=True):
        close(one.personal, other.personal, "without noise, private training")


def check_releases(case: Case) -> None:
    """What a client releases in a round is what the method declares."""
    federation = small_federation()
    algorithm, x = case.build(federation), starting_rows(federation, Setting())
    declared, why = algorithm.releases, ""
    try:
        found = _dry_run(algorithm._replace(releases=None), x.shape[1]).releases
    except Refusal as refusal:
        found, why = Releases(unbounded=True), f" ({refusal})"
    if declared is None:
        raise NotApplicable(
            "the method does not declare what it releases. A dry run found "
            f"`releases={declaration(found)}`{why}: write it into its `Algorithm`."
        )
    assert is_within(found, declared), (
        f"it declares {declaration(declared)}, but the dry run found "
        f"{declaration(found)}{why}"
    )
    never = [name for name in declared._fields if _is_never(name, declared, found)]
    assert not never, (
        f"it declares {declaration(declared)}, but the dry run found "
        f"{declaration(found)}: `{never[0]}` is never released."
    )


def _is_never(name: str, declared: Releases, found: Releases) -> bool:
    return bool(getattr(declared, name)) and not getattr(found, name)


def _dry_run(algorithm: Algorithm, columns: int) -> CallPlan:
    """The planned messages if all clients take part at first, and only some later."""
    rounds = [torch.ones_like(ACTIVE)] * _HALF + [ACTIVE] * (ROUNDS - _HALF)
    return plan_calls(algorithm, rounds, seed=0, label="it", columns=columns)

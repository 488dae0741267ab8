"""Trains, evaluates and records one algorithm on one seed, from start to end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import InputError, TrainingError, own_code
from ..clients.simulation import Simulation
from ..data.federation import PARTS, client_name
from ..engine.rounds import Lapse, Round
from ..engine.states import own, whole
from ..models import Objective
from ..privacy.mechanisms import PrivateFlow, PrivateState
from ..records import SNAPSHOT_CLIENTS, SPANS, Cell, Folder, unpack
from ..records.ledgers import DataLedger
from ..records.versions import versions
from ..types import ALONE, State
from .config import Entry, Study, algorithm_factory
from .division import Division, SharedFolder, from_first, refuse_any
from .loops import Training, outcomes_of, sharpness_of, training_of, with_outcomes
from .newcomers import models_for, newcomer_table
from .pooled import with_global, with_pooled
from .private import CellAccount, spent_of, stopped_text
from .settings.stopping import last_round
from .setup import Setup
from .tables import RunTable

_SNAPSHOTS = 50
"""About how many collaboration matrices of each cell are kept."""

Tell = Callable[..., None]
"""Called after every round with its number, a score or None, and perhaps the state."""


Say = Callable[[str], None]
"""Called with one line for the user."""

Log = Callable[[Cell], None]
"""Called after every evaluation."""

AnyFolder = Folder | SharedFolder
"""The folder of a run, written by this process or by the first of several."""


class Listeners(NamedTuple):
    """The callbacks while a cell is trained."""

    tell: Tell
    say: Say
    log: Log


class _End(NamedTuple):
    """When a cell ends."""

    rounds: int
    flat: bool  # or before, when it no longer improves; it may go on later

    def is_reached(self, cell: Cell) -> bool:
        """Whether a cell need not go on now."""
        return self.flat and last_round(cell) is not None


def run_cell(
    setup: Setup,
    entry: Entry,
    folder: AnyFolder,
    listeners: Listeners,
    ledger: DataLedger | None = None,
    *,
    rounds: int | None = None,
    until_flat: bool = False,
) -> Cell:
    """One algorithm on one seed, trained from where it stands to its end.

    The folder keeps the state. Training ends after `rounds` rounds, by default the
    rounds of the study. With `until_flat`, it ends when the cell no longer improves,
    and may go on later.
    """
    cell = _load_or_begin(setup, entry, folder, listeners.say)
    if cell.done or (until_flat and last_round(cell) is not None):
        if cell.done:
            _keep_models(cell, setup, entry, folder, listeners.say)
        listeners.tell(setup.study.run.rounds, None)
        return replace(cell, state=None)
    account = CellAccount(setup, entry, cell, folder.path, ledger)
    end = _End(rounds or setup.study.run.rounds, until_flat)
    cell = _run_to_end(cell, setup, entry, folder, listeners, account, end)
    if stopped := stopped_text(cell, setup.study):
        listeners.say(stopped)
    cell = replace(cell, done=not until_flat)
    folder.save(cell)
    if cell.done:
        account.on_finished(cell)
    return replace(cell, state=None)


def _run_to_end(
    cell: Cell,
    setup: Setup,
    entry: Entry,
    folder: AnyFolder,
    listeners: Listeners,
    account: CellAccount,
    end: _End,
) -> Cell:
    """The cell after all rounds, or after the round where it no longer improves."""
    run, simulation, (tell, say, log) = setup.study.run, setup.simulation, listeners
    training = training_of(setup, entry, held=bool(account.lost))
    begins, r = not cell.rounds, None
    # Nothing is saved before rounds that were lost are paid for.
    cell = _with_state(cell, setup, training, folder, account)
    try:
        if begins:
            cell = evaluate_cell(cell, setup, training, {})
            folder.grow(cell)
            log(cell)
        saved, book = (began := time.monotonic()), RoundCounts(setup)
        rounds = training.rounds(rounds=end.rounds, start=(cell.t, cell.state))
        for r in account.rounds(rounds, cell):
            book.keep(r, cell)
            evaluates = r.t % run.every == 0 or r.t == end.rounds
            if not evaluates and not book.is_full(r.t):
                tell(r.t, None, r.state)
                continue
            sums = book.sum_up(due=time.monotonic() - saved >= run.checkpoint_seconds)
            # An interruption at any time finds `cell` as it was after a whole round.
            after = _after_round(cell, r, sums, time.monotonic() - began)
            if evaluates:
                after = evaluate_cell(after, setup, training, r.info)
                _say_infinite(cell, after, setup, say)
            cell = after
            if evaluates:
                folder.grow(cell)
                log(cell)
            tell(r.t, _score(cell, simulation) if evaluates else None, cell.state)
            if sums.due:
                folder.save(cell)
                account.on_saved(cell)
                saved = time.monotonic()
            began = time.monotonic()
            if end.is_reached(cell):
                break
        return cell if end.flat else _conclude(cell, setup, entry, training, folder)
    except (TrainingError, InputError, KeyboardInterrupt) as error:
        # All processes know that training fails, but not that one was interrupted.
        fails = isinstance(error, TrainingError)
        if r is not None and r.change is not None and r.t > cell.t:
            r.change.undo()  # to save the state of the round before
        if cell.rounds and (simulation.group.size == 1 or fails):
            folder.save(cell)
            account.on_interrupted(cell)
        if not fails:
            raise
        raise TrainingError(
            f"{error}; earlier rounds are kept in {folder.path}, and a smaller step "
            "size usually helps."
        ) from None


def _with_state(
    cell: Cell,
    setup: Setup,
    training: Training,
    folder: AnyFolder,
    account: CellAccount,
) -> Cell:
    """The cell with the state to go on from, after paying for lost rounds.

    With [privacy], no client is asked for anything before that is charged.
    """
    if cell.rounds:
        state = restore_state(cell, training.like(), folder, setup)
    else:
        account.reserve(0)
        state = training.init()
    return account.begin(replace(cell, state=state))


def _load_or_begin(setup: Setup, entry: Entry, folder: AnyFolder, say: Say) -> Cell:
    """The cell as it was saved, or a new one, with the versions that train it."""
    maker = algorithm_factory(entry.name)
    group, device = setup.simulation.group, setup.x.device
    now = from_first(group, lambda: versions(device, maker.__module__))
    cell = folder.cell(entry.label, setup.seed)
    if cell is None:
        names = setup.federation.clients.tolist()
        return Cell(entry.label, setup.seed, clients=names, versions=[(0, now)])
    if now in [before for _, before in cell.versions[-1:]]:
        return cell
    say(
        f"{folder.path} holds cells that other versions have made (versions.csv): "
        "finished ones stay as they are, the others go on with these versions."
    )
    if cell.done:
        return cell
    return replace(cell, versions=[*cell.versions, (cell.t, now)])


def _conclude(
    cell: Cell, setup: Setup, entry: Entry, training: Training, folder: AnyFolder
) -> Cell:
    """The cell after its last round, with all models saved, also those of newcomers."""
    x = training.personal(cell.state, training.asked.at(cell.t, purpose="use"))
    if setup.newcomers is not None:
        folder.save(cell)  # before welcoming newcomers, which may take long
        group, clients = setup.division
        state = whole(training.inner(cell.state), group, clients)
        everybody = setup.division.collect(x)
        rows, table, samples = from_first(
            group, lambda: _welcome(cell, state, setup, entry, everybody)
        )
        folder.save_models(cell.label, cell.seed, rows, of="newcomers")
        cell = replace(cell, newcomers=table, newcomer_outcomes=samples)
    folder.save_models(cell.label, cell.seed, x)
    return with_pooled(with_outcomes(cell, setup, x), setup, x)


def _welcome(
    cell: Cell, state: State, setup: Setup, entry: Entry, x: Tensor | None
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """The models of newcomers, their measures, and the outcomes of their samples.

    The state is that of all clients, and x has the models of those that trained.
    """
    newcomers = setup.newcomers
    assert newcomers is not None and x is not None  # only called in process 0
    epochs, joining = "epochs" in entry.options, newcomers.simulation
    asked = joining.in_epochs() if epochs else joining
    oracle = asked.at(cell.t, purpose="welcome")
    method = setup.welcoming(entry)
    with own_code("algorithm.name", entry.name):
        rows = models_for((method.flow or method).welcome, state, x, oracle)
    bad = ~torch.isfinite(rows.sum(1))
    if bad.any():
        client = newcomers.federation.name_of(int(bad.nonzero()[0]))
        raise TrainingError(
            f"{cell.label} (seed {cell.seed}): {client} has a newcomer's model "
            f"that is not finite after round {cell.t}"
        )
    table = newcomer_table(newcomers.federation)
    table |= measures_of(setup.study, newcomers.simulation, rows)
    samples = outcomes_of(setup, rows, newcomers.simulation)
    return rows.cpu(), {k: v.cpu() for k, v in table.items()}, samples


def _keep_models(
    cell: Cell, setup: Setup, entry: Entry, folder: AnyFolder, say: Say
) -> None:
    """Makes the models of a finished cell again, if they are lost or damaged."""
    wanted = ["clients"] if setup.newcomers is None else ["clients", "newcomers"]
    if all(folder.has_models(cell.label, cell.seed, of=of) for of in wanted):
        return
    say(
        f"models of {cell.label!r} with seed {cell.seed} were missing or damaged in "
        f"{folder.path} and are made again from its state."
    )
    training = training_of(setup, entry)
    state = restore_state(cell, training.like(), folder, setup)
    _conclude(replace(cell, state=state), setup, entry, training, folder)


def restore_state(cell: Cell, like: Any, folder: AnyFolder, setup: Setup) -> Any:
    """The state of the clients at hand, from a cell that was read from its file."""
    try:
        return unpack(own(cell.state, like, *setup.division), like)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the checkpoint of {cell.label!r} in {folder.path} was written by another "
            "version of the algorithm; use a new folder."
        ) from error


_FULL = 10
"""The most rounds between two sums over several processes."""


class RoundSums(NamedTuple):
    """What all processes together have counted since the last sum."""

    gradients: float  # of single samples
    floats: float  # that were sent
    peer_floats: float
    due: bool  # whether process 0 wants a checkpoint


class RoundCounts:
    """What this process has counted since all processes last added up their counts.

    Several processes send no message for every round. They add up when they evaluate,
    and every few rounds. Then every process knows the sums, whether any model was not
    finite, and after which round. A single process adds up after every round.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._group = setup, setup.simulation.group
        self._counts = (0.0, 0.0, 0.0)
        self._why = ""
        self.failed = 0  # the first round after which a model was not finite; 0: none

    def keep(self, r: Round, cell: Cell) -> None:
        """Counts a round; `cell` may be of an earlier round."""
        if not self._why:
            self._why = nonfinite_state(r, cell, self._setup)
            self.failed = r.t if self._why else 0
        new = float(r.gradients.sum()), r.traffic.total, r.traffic.peers
        gradients, floats, peers = map(sum, zip(self._counts, new, strict=True))
        self._counts = gradients, floats, peers

    def is_full(self, t: int) -> bool:
        """Whether processes add up after round t, even if they do not evaluate."""
        return self._group.size == 1 or t % _FULL == 0

    def sum_up(self, *, due: bool = False) -> RoundSums:
        """The sums over all processes; their counts then begin again at 0.

        If any model was not finite, every process raises a `TrainingError`. A
        checkpoint is `due` if process 0 wants one.
        """
        said = self._group.gather((self._why, self.failed, *self._counts, due))
        failures = [(t, why) for why, t, *_ in said if why]
        if failures:
            self.failed, why = min(failures, key=lambda failure: failure[0])
            raise TrainingError(why)
        self._counts = (0.0, 0.0, 0.0)
        _, _, gradients, floats, peers, wishes = zip(*said, strict=True)
        return RoundSums(sum(gradients), sum(floats), sum(peers), wishes[0])


def _after_round(cell: Cell, r: Round, sums: RoundSums, seconds: float) -> Cell:
    """The cell after a round, with the sums since the last one."""
    after = replace(
        cell,
        t=r.t,
        state=r.state,
        gradients=cell.gradients + sums.gradients,
        floats=cell.floats + sums.floats,
        peer_floats=cell.peer_floats + sums.peer_floats,
        seconds=cell.seconds + seconds,
    )
    return after if r.lapse is None else _with_lapse(after, r.lapse)


def _with_lapse(cell: Cell, lapse: Lapse) -> Cell:
    """The cell with a record of the virtual time that passed."""
    delays = Counter(cell.delays)
    delays.update(lapse.delays)
    room = max(0, SPANS - len(cell.spans))
    return replace(
        cell,
        time=lapse.time,
        updates=cell.updates + lapse.updates,
        delays=dict(delays),
        spans=[*cell.spans, *lapse.spans[:room]] if room else cell.spans,
        work={"busy": lapse.busy, "idle": lapse.idle, "tasks": lapse.tasks},
    )


def evaluate_cell(
    cell: Cell, setup: Setup, training: Training, info: dict[str, Tensor | float]
) -> Cell:
    """The cell with an evaluation of personal models on their clients' own parts."""
    study, simulation = setup.study, setup.simulation
    x = training.personal(cell.state, training.asked.at(cell.t, purpose="use"))
    refuse_nonfinite(x, cell, setup)
    values = measures_of(study, simulation, x) | spent_of(cell.state, study)
    values |= sharpness_of(cell, setup, x)
    values = with_global(values, setup, training, cell)
    info = setup.division.join_info(info)
    row = {
        "round": cell.t,
        "gradients": cell.gradients,
        "bytes": cell.floats * x.element_size(),
        "peer_bytes": cell.peer_floats * x.element_size(),
        "seconds": cell.seconds,
        **_scalars(info),
    }
    if study.time is not None:
        row |= {"time": cell.time, "updates": cell.updates}
    if study.diagnostics is not None:
        row["stable_below"] = 2 / training.lr
    cell = replace(cell, metrics=[*cell.metrics, values], rounds=[*cell.rounds, row])
    return _with_snapshot(cell, study, info)


def measures_of(study: Study, simulation: Simulation, x: Tensor) -> dict[str, Tensor]:
    """The measures of each client's own model on its own parts, (N,) each."""
    joined = Division(simulation.group, len(simulation)).join
    values: dict[str, Tensor] = {}
    for part in PARTS:
        there = part != "validation" or simulation.validates
        if there and (part != "train" or study.run.evaluate_train):
            measures = simulation.evaluate(x, part)
            values |= {f"{part}_{n}": joined(v).cpu() for n, v in measures.items()}
    optima = simulation.federation.optima
    if optima is not None and optima.shape == x.shape:
        values["distance"] = joined((x - optima).square().sum(1)).cpu()
    return values


def _say_infinite(before: Cell, after: Cell, setup: Setup, say: Say) -> None:
    """Says whose loss is no longer finite. Models are finite, so training goes on."""
    found = _infinite(after, setup)
    if found and not _infinite(before, setup):
        say(
            f"{after.label} (seed {after.seed}): {found} is not finite after round "
            f"{after.t}, though its model is; training goes on, and a smaller step "
            "size usually helps."
        )


def _infinite(cell: Cell, setup: Setup) -> str:
    """The first loss of the last evaluation that is not finite; "" if all are."""
    for part in PARTS:
        loss = cell.metrics[-1].get(f"{part}_loss") if cell.metrics else None
        if loss is not None:
            bad = ~loss.isfinite() & (setup.federation.part(part).size.cpu() > 0)
            if bad.any():
                client = setup.federation.name_of(int(bad.nonzero()[0]))
                return f"the {part} loss of {client}"
    return ""


def _score(cell: Cell, simulation: Simulation) -> float | None:
    """The mean validation score of the last evaluation; None: no validation data."""
    objective, found = simulation.objective, cell.metrics[-1]
    if not simulation.validates:
        return None
    names = {"loss", objective.score}
    return mean_score(objective, {name: found[f"validation_{name}"] for name in names})


def mean_score(objective: Objective, found: Mapping[str, Tensor]) -> float:
    """The mean over clients, except those on whose samples the score is undefined."""
    scores = found[objective.score].double()
    if objective.score in objective.of_client:
        # When models fail, the loss is NaN, too.
        scores = scores[~(scores.isnan() & found["loss"].isfinite())]
    return float(scores.mean())


def _scalars(info: dict[str, Tensor | float]) -> dict[str, float]:
    """Means over clients of what a round reports, and the number of groups."""
    named = {k: v for k, v in info.items() if k not in ("weights", "member", "uses")}
    found = {k: float(torch.as_tensor(v).double().mean()) for k, v in named.items()}
    member = info.get("member")
    if isinstance(member, Tensor):
        found["groups"] = float(len(member[member != ALONE].unique()))
    return found


def _with_snapshot(cell: Cell, study: Study, info: dict[str, Tensor | float]) -> Cell:
    """The cell with a snapshot of who learns with whom, at some of the evaluations."""
    if not keeps_snapshot(study.run, len(cell.rounds) - 1, cell.t):
        return cell
    weights, member = info.get("weights"), info.get("member")
    if isinstance(weights, Tensor) and len(weights) <= SNAPSHOT_CLIENTS:
        matrix = weights.detach().to_dense().to("cpu", torch.float32)
        cell = replace(
            cell,
            snapshot_rounds=[*cell.snapshot_rounds, cell.t],
            snapshots=[*cell.snapshots, matrix],
        )
    if isinstance(member, Tensor):
        labels = torch.stack([member, torch.as_tensor(info.get("uses", member))])
        cell = replace(
            cell,
            group_rounds=[*cell.group_rounds, cell.t],
            groups=[*cell.groups, labels.to("cpu", torch.int32)],
        )
    return cell


def keeps_snapshot(run: RunTable, number: int, t: int) -> bool:
    """Whether evaluation `number`, after round t, keeps who learns with whom."""
    evaluations = max(1, run.rounds // run.every)
    stride = max(1, evaluations // _SNAPSHOTS)
    return number % stride == 0 or number == 1 or t == run.rounds


def nonfinite_state(r: Round, cell: Cell, setup: Setup) -> str:
    """Why training cannot go on, if anything of a model's size is not finite; or ""."""
    if _hides(setup):  # stopping would reveal something about data
        return ""
    after, parameters = replace(cell, t=r.t), setup.x.shape[1]
    found = ""
    for tensor in _tensors(r.state):
        if found or not tensor.is_floating_point():
            continue
        if tensor.shape[-1:] == (parameters,):
            if tensor.stride(0) == 0 and bool(tensor[:1].sum().isfinite()):
                continue  # one row for all clients
            rows = tensor.reshape(-1, parameters)
            if len(rows) == len(setup.x):
                changed = None if r.change is None else r.active.nonzero()[:, 0]
                found = _nonfinite(rows, "a model", after, setup, changed)
            elif not bool(rows.sum().isfinite()):
                found = (
                    f"{cell.label} (seed {cell.seed}): a model that clients share is "
                    f"not finite after round {r.t}"
                )
    return found


def _tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of nested tuples and dataclasses."""
    if isinstance(state, PrivateState | PrivateFlow):
        state = state.state  # spent budgets are not models, and infinite without noise
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple) or is_dataclass(state):
        parts = state if isinstance(state, tuple) else vars(state).values()
        for part in parts:
            yield from _tensors(part)


def refuse_nonfinite(x: Tensor, cell: Cell, setup: Setup) -> None:
    """Stops training if a personal model is not finite, and says whose."""
    found = _nonfinite(x, "a personal model", cell, setup)
    refuse_any(setup.simulation.group, found)


def _hides(setup: Setup) -> bool:
    """Whether clients hide their data with noise."""
    privacy = setup.study.privacy
    return privacy is not None and privacy.noise != 0


def _nonfinite(
    x: Tensor, what: str, cell: Cell, setup: Setup, who: Tensor | None = None
) -> str:
    """Whose row is not finite; "" if all rows are, or if clients hide their data.

    Only rows of the clients `who` are looked at (None: all).
    """
    bad = ~torch.isfinite((x if who is None else x[who.to(x.device)]).sum(1))
    if not bad.any() or _hides(setup):  # stopping would reveal something about data
        return ""
    first = int(bad.nonzero()[0])
    place = first if who is None else int(who[first])
    identity = cell.clients[setup.division.mine][place]
    client = client_name(setup.federation.names, identity)
    return (
        f"{cell.label} (seed {cell.seed}): {client} has {what} that is "
        f"not finite after round {cell.t}"
    )

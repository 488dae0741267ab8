"""A study at a site: which steps a member does, from the set-up to its own results."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ... import seeds
from ...checks import InputError, TrainingError
from ...clients.simulation import Simulation
from ...data.federation import Federation, Table
from ...data.fitting import with_preparation
from ...engine.rounds import init_oracle, participants
from ...engine.states import without_server
from ...models import ravel
from ...records import Cell, Folder, unpack
from ...records.cells import pack
from ...records.versions import versions
from ...study.config import Entry, Study, measures_clients
from ...study.loops import Training, with_outcomes
from ...study.private import cost_of, guard_of, spent_of
from ...study.settings.rules import with_defaults
from ...study.setup import Setup, module_of, simulation_of
from ...study.training import evaluate_cell
from ...types import Algorithm, Info, traffic_of
from ..messages import encode
from .comparing import mask
from .declared import (
    declared_description,
    refuse_undeclared,
    with_declared_preparation,
)
from .member import Member, RunStep, TooOld
from .member_store import Checkpoint, DiskError
from .noise import BudgetSpent, Charge, SiteLedger, privacy_at_site
from .rejoining import state_without_answers
from .results import describe
from .site_data import (
    agreed_table,
    description,
    own_federation,
    sizes_of,
    with_all_clients,
)

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class SiteSetup:
    """What all algorithms of a seed share at a site."""

    together: Setup  # with the group of all sites, and what is known of all
    alone: Setup  # this site's own client, for its own scores

    @property
    def simulation(self) -> Simulation:
        """The site's client, which reaches the others by the hub."""
        return self.together.simulation


class SiteRun:
    """A study at one site."""

    def __init__(
        self,
        study: Study,
        table: Table,
        member: Member,
        folder: Folder,
        say: Say = lambda line: None,
        ledger: SiteLedger | None = None,
    ) -> None:
        """Prepares the run.

        Args:
            study: checked, with this site's table as its data.
            table: of this site.
            member: reaches the hub.
            folder: of this site's results.
            say: called with lines for the user.
            ledger: of this site; a study with [privacy] needs it.
        """
        if study.privacy is not None:
            study = private_study(study, table, len(member.names), ledger)
        self._ledger, self._name = ledger, ""
        self._study, self._table, self._member = study, table, member
        self._folder, self._say = folder, say
        self._cells = [
            (seed, entry) for seed in study.run.seeds for entry in study.algorithms
        ]

    @property
    def steps(self) -> int:
        """The number of steps of the whole run."""
        return 1 + len(self._cells) * (self._study.run.rounds + 1)

    def train(self, name: str) -> list[Cell]:
        """Trains all algorithms; gives what was recorded at this site.

        Args:
            name: identifies the study and the roster, the same at all members.
        """
        self._name = name
        member, last = self._member, self._member.store.last()
        member.hello(name, -1 if last is None else last.step, self._say)
        member.begin_set_up(1, self.steps)
        last = member.recover()
        try:
            setups = member.do(
                RunStep(0, "set-up", everybody=True), lambda present: self._set_up()
            )
            cells = []
            for place, (seed, entry) in enumerate(self._cells):
                first = 1 + place * (self._study.run.rounds + 1)
                cells.append(self._cell(setups[seed], entry, first, last))
            member.finish(self.steps)
            return cells
        except (BudgetSpent, DiskError):
            raise  # the others can go on
        except (InputError, TrainingError) as error:
            private = self._study.privacy is not None  # a reason may quote data
            member.fail("the reason is at this site" if private else str(error))
            raise

    # The set-up, by averages.

    def _set_up(self) -> dict[int, SiteSetup]:
        """The setup of every seed, on which all sites agree."""
        group, names = self._member.group, self._member.names
        self._member.tell_away_keys()
        if self._study.privacy is not None:  # the study says it, and nobody tells
            told = [declared_description(self._study.sites, self._table)] * group.size
        else:
            told = group.gather(description(self._table))
        table = agreed_table(self._table, told, names)
        made = {seed: self._set_up_seed(table, seed) for seed in self._study.run.seeds}
        for setup in made.values():
            describe(setup.alone, self._folder)
        return made

    def _set_up_seed(self, table: Table, seed: int) -> SiteSetup:
        group, names, rank = self._member.group, self._member.names, self._member.rank
        own = own_federation(self._study, table, seed, names, rank)
        own = self._prepare_together(own)
        everybody = with_all_clients(own, group.gather(sizes_of(own)))
        module = module_of(self._study, own, seed)
        study = with_defaults(self._study, module)
        asked = simulation_of(study, own, module, seed, group)
        x = ravel(module).to(study.run.place)[None]
        if any(measures_clients(entry) for entry in study.algorithms):
            asked.measure(x)
        by_itself = simulation_of(study, own, module, seed)
        by_itself.kernel, by_itself.samples = asked.kernel, asked.samples
        return SiteSetup(
            Setup(study, seed, everybody, module, asked, x),
            Setup(replace(study, privacy=None), seed, own, module, by_itself, x),
        )

    def _prepare_together(self, own: Federation) -> Federation:
        """The federation with features that all sites prepare together."""
        if own.raw is None:
            return own
        if self._study.privacy is not None:
            return with_declared_preparation(own, self._study)
        columns = own.features[0].numel()
        module = nn.Sequential(nn.Flatten(), nn.Linear(columns, 1))
        group = self._member.group
        asked = Simulation(own, module, dtype=torch.float64, group=group)
        return with_preparation(own, own, asked.at(0).average, group.size)

    # One algorithm on one seed.

    def _cell(
        self, setup: SiteSetup, entry: Entry, first: int, last: Checkpoint | None
    ) -> Cell:
        """The cell of an entry, trained from where it stands."""
        rounds = setup.together.study.run.rounds
        label, seed = entry.label, setup.together.seed
        if last is not None and last.step >= first + rounds:
            kept = self._folder.cell(label, seed)
            if kept is not None and kept.done:
                return replace(kept, state=None)
        self._member.group.sizes = setup.together.federation.train.size
        training = site_training(setup, entry)
        algorithm = method_of(setup, entry)
        if last is not None and first <= last.step <= first + rounds:
            kept, memory = last.value
            cell = self._restore_cell(kept, setup, entry, algorithm)
            self._member.memory.last = bytes.fromhex(memory)
        else:
            cell = self._start_cell(setup, entry, algorithm, training, first)
        every = setup.together.study.run.every
        self._say(f"{label}, seed {seed}: round {cell.t} of {rounds}")
        info: Info = {}
        while True:
            due = cell.t == rounds or cell.t % every == 0
            if due and (not cell.rounds or cell.rounds[-1]["round"] < cell.t):
                cell = evaluate_cell(cell, setup.alone, training, info)
                cell = self._with_spending(cell, setup)
            if cell.t == rounds:
                return self._conclude_cell(cell, setup, training)
            try:
                cell, info = self._one_round(
                    cell, setup, entry, training, algorithm, first
                )
            except TooOld as gap:
                cell, info = self._rejoin(
                    gap, cell, setup, entry, training, algorithm, first
                )

    def _start_cell(
        self,
        setup: SiteSetup,
        entry: Entry,
        algorithm: Algorithm,
        training: Training,
        first: int,
    ) -> Cell:
        """The cell before its first round."""
        seed, now = setup.together.seed, versions(setup.together.x.device, "")
        new = Cell(entry.label, seed, clients=[self._member.rank], versions=[(0, now)])

        def start(present: Sequence[int]) -> Cell:
            active = mask(present, self._member.group.size)
            oracle = training.asked.at(0, active, purpose="init")
            return replace(new, state=algorithm.init(setup.together.x, oracle))

        # A coordinator must know all members when it begins.
        sees_rows = algorithm.releases is not None and algorithm.releases.central > 0
        what = f"{entry.label}, seed {seed}, start"
        step = RunStep(first, what, everybody=sees_rows)
        scales = self._member.memory.scales
        scales.clear()  # those of another algorithm
        charge = self._charge(setup, entry, 0, step)
        try:
            found = self._member.do(step, start, pack_cell, charge)
        except TooOld as gap:
            return self._rejoin(gap, new, setup, entry, training, algorithm, first)[0]
        scales.clear()  # the start has other averages than rounds
        return found

    def _one_round(
        self,
        cell: Cell,
        setup: SiteSetup,
        entry: Entry,
        training: Training,
        algorithm: Algorithm,
        first: int,
    ) -> tuple[Cell, Info]:
        """The cell after its next round, and what the round reports."""
        step = self._step(cell, first)
        charge = self._charge(setup, entry, cell.t + 1, step)
        work = self._work(cell, training, algorithm)
        return self._member.do(step, work, lambda found: pack_cell(found[0]), charge)

    def _step(self, cell: Cell, first: int) -> RunStep:
        """The step of the next round of a cell."""
        t, seed = cell.t + 1, cell.seed
        what = f"{cell.label}, seed {seed}, round {t}"
        return RunStep(first + t, what, drawn=self._draw(seed, t))

    def _work(
        self, cell: Cell, training: Training, algorithm: Algorithm
    ) -> Callable[[Sequence[int]], tuple[Cell, Info]]:
        """Does the next round of a cell, given who is present."""
        t, seed, size = cell.t + 1, cell.seed, self._member.group.size

        def work(present: Sequence[int]) -> tuple[Cell, Info]:
            oracle = training.asked.at(t, mask(present, size))
            rng = seeds.generator(seed, "algorithm", t)
            state, info = algorithm.step(cell.state, oracle, rng)
            traffic = traffic_of(oracle.sent, oracle.mine)
            after = replace(
                cell,
                t=t,
                state=state,
                gradients=cell.gradients + float(oracle.gradients.sum()),
                floats=cell.floats + traffic.total,
                peer_floats=cell.peer_floats + traffic.peers,
            )
            return after, own_info(info)

        return work

    def _rejoin(
        self,
        gap: TooOld,
        cell: Cell,
        setup: SiteSetup,
        entry: Entry,
        training: Training,
        algorithm: Algorithm,
        first: int,
    ) -> tuple[Cell, Info]:
        """The cell after the oldest round in the log; see `rejoining`."""
        t, rounds = gap.step - first, self._study.run.rounds
        if not 1 <= t <= rounds or self._study.privacy is not None:
            raise gap
        tried = []
        for which in (0, 1):
            try:
                state = state_without_answers(
                    algorithm,
                    setup.simulation,
                    self._member.group.blank,
                    cell.state,
                    range(cell.t + 1, t),
                    cell.seed,
                    which,
                    x=setup.together.x,
                    epochs="epochs" in entry.options,
                )
            except InputError:
                raise gap from None
            tried.append(replace(cell, t=t - 1, state=state))
        step = self._step(tried[0], first)

        def again(present: Sequence[int]) -> tuple[Cell, Info]:
            found = self._work(tried[1], training, algorithm)(present)
            if encode(pack(found[0].state)) != encode(pack(one.state)):
                raise gap
            return found

        try:
            self._member.go_on_after(gap)
            one, _ = self._member.do(step, self._work(tried[0], training, algorithm))
            self._member.go_on_after(gap)
            found = self._member.do(step, again, lambda found: pack_cell(found[0]))
        except TooOld as later:
            if later is gap:
                raise
            # The hub has forgotten more meanwhile.
            return self._rejoin(later, cell, setup, entry, training, algorithm, first)
        self._say(f"{cell.label}: goes on at round {t}, the oldest in the log")
        return found

    def _draw(self, seed: int, t: int) -> tuple[int, ...] | None:
        """The members that may take part in a round; None: all of them."""
        share, size = self._study.run.participation, self._member.group.size
        if share == 1:
            return None
        return tuple(participants(size, share, seed, t).nonzero().flatten().tolist())

    def _charge(
        self, setup: SiteSetup, entry: Entry, t: int, step: RunStep
    ) -> Callable[[int], None] | None:
        """Writes what an attempt at a round may cost to the ledger of this site."""
        if self._ledger is None or self._study.privacy is None:
            return None
        costs, ledger = cost_of(setup.together, entry, [t]), self._ledger
        assert costs is not None  # it is computed
        own = costs[self._member.rank]
        cost = own if isinstance(own, Counter) else float(own)
        if not cost:
            return None

        def charge(attempt: int) -> None:
            ledger.charge(Charge(self._name, step.number, attempt, step.what, cost))

        return charge

    def _restore_cell(
        self, value: Cell, setup: SiteSetup, entry: Entry, algorithm: Algorithm
    ) -> Cell:
        """The cell of a checkpoint, with a state of the right types."""
        blank = copy.copy(setup.simulation)
        blank.group = self._member.group.blank
        made = algorithm.init(setup.together.x.clone(), init_oracle(blank))
        like = without_server(made)
        self._member.group.forget()  # noise of rows that have gone nowhere
        return replace(value, state=unpack(value.state, like))

    def _conclude_cell(self, cell: Cell, setup: SiteSetup, training: Training) -> Cell:
        """The finished cell, with its model and the outcomes of its test samples."""
        oracle = training.asked.at(cell.t, purpose="use")
        x = training.personal(cell.state, oracle)
        self._folder.save_models(cell.label, cell.seed, x)
        cell = with_outcomes(replace(cell, state=None), setup.alone, x)
        cell = replace(cell, done=True)
        self._folder.save(cell)
        return cell

    def _with_spending(self, cell: Cell, setup: SiteSetup) -> Cell:
        """The cell, whose last evaluation says what this site has spent so far."""
        spent, rank = spent_of(cell.state, setup.together.study), self._member.rank
        own = {name: values[rank : rank + 1] for name, values in spent.items()}
        return replace(cell, metrics=[*cell.metrics[:-1], cell.metrics[-1] | own])


def private_study(
    study: Study, table: Table, members: int, ledger: SiteLedger | None
) -> Study:
    """The study as a site plans it; refuses a study that would not protect the site."""
    privacy, sites = study.privacy, study.sites
    assert privacy is not None  # only called with [privacy]
    refuse_undeclared(study, table)
    if ledger is None:
        raise InputError("a study with [privacy] needs the ledger of this site.")
    if privacy.secure and not sites.masks:
        raise InputError(
            "`privacy.aggregation` secure needs `sites.masks = true`, because without "
            "masks the hub sees single rows."
        )
    if privacy.secure and study.run.participation < 1:
        raise InputError(
            "`run.participation` must be 1 with `privacy.aggregation` secure between "
            f"sites, got {study.run.participation:g}."
        )
    return replace(
        study, privacy=privacy_at_site(privacy, members, sites.least_members)
    )


def method_of(setup: SiteSetup, entry: Entry) -> Algorithm:
    """The algorithm of an entry, made private if the study has [privacy]."""
    if setup.together.study.privacy is None:
        return setup.together.algorithm(entry)
    return guard_of(setup.together, entry).method


def site_training(setup: SiteSetup, entry: Entry) -> Training:
    """How the models of an entry are used at this site."""
    algorithm = method_of(setup, entry)
    asked: Any = (
        setup.simulation.in_epochs() if "epochs" in entry.options else setup.simulation
    )
    if setup.together.study.privacy is not None:
        asked = guard_of(setup.together, entry).clients or asked

    def never(**options: Any) -> Any:
        raise AssertionError("a member does rounds as steps")

    known = entry.options.get("lr", float("nan"))
    lr = float("nan") if isinstance(known, str) else float(known)
    return Training(
        lambda: None, never, algorithm.personal, lambda state: state, asked, lr
    )


def pack_cell(cell: Cell) -> Cell:
    """The cell with its state as plain values, for a file."""
    return replace(cell, state=pack(cell.state))


def own_info(info: Info) -> Info:
    """What a round reports about this site alone."""
    shared = ("weights", "member", "uses")
    return {k: v for k, v in info.items() if k not in shared}

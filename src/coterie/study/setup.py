"""What the algorithms of a study share, and how they are built from data and tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from .. import checks
from ..checks import InputError, parameters_of
from ..clients.compiling import can_compile
from ..clients.groups import Group, SingleProcess
from ..clients.kernels import Kernel
from ..clients.samples import Batch, batches_of
from ..clients.simulation import Simulation
from ..data.datasets import depends_on_seed, load
from ..data.doubts import one_class_clients
from ..data.federation import Federation, Table
from ..data.fitting import with_preparation
from ..data.splits import divide
from ..engine.faces import one_face, refuse_unused
from ..engine.servers import with_server
from ..models import (
    BESIDE,
    OBJECTIVES,
    Architecture,
    Objective,
    adapt_objective,
    columns,
    layout,
    objective_named,
    ravel,
    refuse_misshapen,
)
from ..types import Algorithm, Flow, State, Task
from .config import Entry, Study, algorithm_factory, most_steps, trained_options
from .division import Division, read_once
from .identity import choosing_of, content_of
from .ingredients import (
    Context,
    Ingredients,
    cached_ingredients,
    edges_between,
    ingredients_of,
)
from .newcomers import Newcomers, hold_out, on_the_device_of
from .pooled import kernel_for_all
from .search import folds_of
from .settings.optimisers import in_epochs, refuse_in_time, server_of
from .settings.rules import with_defaults

if TYPE_CHECKING:
    from .private.mechanisms.guards import Guard

_COMPILE_AFTER = {"cpu": 20_000, "cuda": 500}
"""The number of gradient steps above which compiling (seconds) saves more than it
costs. """


Build = Callable[[Entry], Algorithm]


@dataclass(frozen=True, eq=False)
class Setup:
    """What all algorithms of one seed share, each piece made once; N clients train."""

    study: Study
    seed: int
    federation: Federation
    module: nn.Module
    simulation: Simulation
    x: Tensor  # (n, D), of the clients of this process
    newcomers: Newcomers | None = None
    read: Mapping[str, str] = field(default_factory=dict)  # see `Data`
    secret: bytes | None = field(default=None, repr=False)  # of the runs folder
    # What is made once, when it is first asked for.
    guards: dict[tuple[str, bool], Guard] = field(
        default_factory=dict, init=False, repr=False
    )
    _folds: list[Setup] = field(default_factory=list, init=False, repr=False)

    @property
    def division(self) -> Division:
        """How the clients that train are divided among processes."""
        return Division(self.simulation.group, len(self.federation))

    @functools.cached_property
    def algorithm(self) -> Build:
        """The function from an entry to its algorithm, for the training clients."""
        return _algorithm_builder(self, self.federation)

    @functools.cached_property
    def welcoming(self) -> Build:
        """The same function, for the training clients and the newcomers."""
        assert self.newcomers is not None  # only called with newcomers
        return _algorithm_builder(self, self.newcomers.everybody)

    @functools.cached_property
    def pooled_kernel(self) -> tuple[Kernel, Tensor]:
        """Measures models on the test data of all clients; see `kernel_for_all`."""
        return kernel_for_all(self)

    def asked_by(self, entry: Entry) -> Simulation:
        """The clients as an entry asks them: step by step, or in epochs."""
        simulation = self.simulation
        return simulation.in_epochs() if "epochs" in entry.options else simulation

    @property
    def folds(self) -> list[Setup]:
        """The setups that a setting is trained and judged on: this, or its folds."""
        # Not a cached property: all objects share its lock, and making folds needs
        # all processes.
        if not self._folds:
            made = [
                self if fold is self.federation else self._on(fold)
                for fold in folds_for(self.study, self.federation, self.seed)
            ]
            self._folds.extend(made)
        return self._folds

    def _on(self, federation: Federation) -> Setup:
        """This setup with other parts of the same samples."""
        group = self.simulation.group
        federation = prepared_by(federation, range(len(federation)), group, like=True)
        if group.size == 1 and federation.raw is None:
            placed = on_the_device_of(self.simulation, federation)
        else:
            placed = self.division.part(federation)
        study, seed = self.study, self.seed
        simulation = simulation_of(study, placed, self.module, seed, group)
        simulation.kernel = self.simulation.kernel  # which may be compiled
        if self.simulation.samples.measurements is not None:
            simulation.measure(self.x)
        return replace(self, federation=federation, simulation=simulation)


def _algorithm_builder(setup: Setup, federation: Federation) -> Build:
    """A function that builds algorithms for a federation, each ingredient once."""
    graph = setup.study.graph
    choosing = choosing_of(setup.study, setup.seed, setup.read, setup.secret)
    context = Context(federation, layout(setup.module), setup.seed, choosing=choosing)
    if graph is not None:
        edges = edges_between(graph.edges, federation)
        context = context._replace(edges=edges, kind=graph.mixing)
    ingredients = cached_ingredients(context)
    built: dict[str, Algorithm] = {}

    def build(entry: Entry) -> Algorithm:
        key = repr((entry.name, entry.waits, sorted(entry.options.items())))
        key += repr(entry.optimizer)
        if key not in built:
            timed = setup.study.time is not None
            made = build_algorithm(entry, ingredients, timed=timed)
            if made.flow is not None and "epochs" in entry.options:
                made = made._replace(flow=_flow_in_epochs(made.flow, setup, federation))
            if made.flow is not None and setup.study.model.get("personal"):
                raise InputError(
                    f"`model.personal` needs rounds, but {entry.label} reacts to "
                    "answers in time: set `waits = true` for it, or leave it out."
                )
            built[key] = made
        return built[key]

    return build


def _flow_in_epochs(flow: Flow, setup: Setup, federation: Federation) -> Flow:
    """The flow, whose tasks take as many minibatches as their clients have."""
    size = setup.study.run.batch_size
    batches = batches_of(federation.train.size, size).tolist()

    def task(state: State, client: int, time: float) -> Task:
        found = flow.task(state, client, time)
        return found._replace(work=found.work * batches[client])

    return flow._replace(task=task)


class Data(NamedTuple):
    """The federations of a study by seed, and digests of what they were read from."""

    federations: dict[int, Federation]
    read: dict[str, str]


def data_of(study: Study, group: Group | None = None) -> Data:
    """The data of a study, loaded once if they do not depend on the seed."""
    name, drawn = study.data["name"], draws_each_seed(study)
    federations: dict[int, Federation] = {}
    read: dict[str, str] = {}
    table = None
    for seed in study.run.seeds:
        if table is None or drawn:
            table = read_once(
                group or SingleProcess(), functools.partial(_table, study, seed)
            )
            read |= content_of(table, name, seed if drawn else None)
        federations[seed] = divide_table(study, table, seed)
    return Data(federations, read)


def draws_each_seed(study: Study) -> bool:
    """Whether every seed has its own data, not only its own split."""
    if study.given is not None:
        return False
    return depends_on_seed(study.data["name"]) and "seed" not in study.data


def federation_of(study: Study, seed: int) -> Federation:
    """The data of a study divided among the clients, for one of its seeds."""
    return divide_table(study, _table(study, seed), seed)


def _table(study: Study, seed: int) -> Table:
    if study.given is not None:
        return study.given
    data = dict(study.data)
    return load(data.pop("name"), **{"seed": seed, **data})


def divide_table(study: Study, table: Table, seed: int) -> Federation:
    """The table divided among clients as the study says, for one of its seeds."""
    split = {"seed": seed, **study.split}
    name = split.pop("name")
    of_columns = study.data["name"] == "file" or "target" in study.data
    if of_columns and len(table.targets.unique()) == 1:
        target = study.data.get("target", "target")
        raise InputError(
            f"column {target!r} has one value in all of `{table.name}`: there is "
            "nothing to predict, choose another `target`."
        )
    if OBJECTIVES[checks.one_of("task", table.task, OBJECTIVES)].labelled:
        # There is nothing to learn from one class; a study can still ask for it.
        split = {"min_classes": 2, **split}
    federation = divide(table, name, **{**split, **_as_they_are(study)})
    if _as_they_are(study) and len(one_class_clients(federation)) == len(federation):
        divide(table, name, **split)  # which refuses
    if len(federation) < 2:
        raise InputError(
            f"a study needs at least two clients, `{federation.name}` has one."
        )
    return federation


def _as_they_are(study: Study) -> dict[str, int]:
    """An option that lets some natural clients have a single class."""
    natural = study.split["name"] == "natural" and "min_classes" not in study.split
    return {"min_classes": 1} if natural else {}


def architecture_of(study: Study, federation: Federation, seed: int) -> Architecture:
    """What the model of a study is made from, for one of its seeds."""
    options = {k: v for k, v in study.model.items() if k not in (*BESIDE, "name")}
    shape = tuple(federation.features.shape[1:])
    dtype, outputs = study.run.dtype, federation.outputs
    return Architecture(study.model["name"], options, shape, outputs, dtype, seed)


def module_of(study: Study, federation: Federation, seed: int) -> nn.Module:
    """The model of a study at its start, for one of its seeds."""
    module = architecture_of(study, federation, seed).build()
    dtype = getattr(torch, study.run.dtype)
    _try_model(module, objective_of(study, federation), federation, dtype)
    return module


def objective_of(study: Study, federation: Federation) -> Objective:
    """What a study minimises and measures: its own choice, or the task's usual one."""
    name = study.model.get("objective", federation.task)
    task = name if name in OBJECTIVES else federation.task
    keys = ("loss", "measures", "score")
    said = {key: study.model[key] for key in keys if key in study.model}
    objective = objective_named("model.objective", name)
    how = federation.preparations
    if how is not None and how.unit is not None:
        objective = objective._replace(restored=how.unit.restore)
        if name == "regression":  # in the unit of the data, and without one
            usual = ["rmse", "r2"]
            objective = adapt_objective(objective, task, measures=usual, score="rmse")
    return adapt_objective(objective, task, **said) if said else objective


def prepare(
    study: Study,
    seed: int,
    everybody: Federation | None = None,
    group: Group | None = None,
) -> Setup:
    """The checked setup of one seed: everything that its algorithms share.

    `everybody` has the data of all clients, if they are loaded already. Without a
    group, this process has all clients.
    """
    everybody = federation_of(study, seed) if everybody is None else everybody
    study = with_epoch_period(study, everybody)
    trains, joins = hold_out(everybody, study.run.newcomers, seed)
    everybody = prepared_by(everybody, trains.tolist(), group or SingleProcess())
    federation = everybody.select(trains) if len(joins) else everybody
    module = module_of(study, federation, seed)
    study = with_defaults(study, module)
    here = Division(group or SingleProcess(), len(federation)).part(federation)
    simulation = simulation_of(study, here, module, seed, group)
    x = ravel(module).to(study.run.place).repeat(len(here), 1)
    setup = Setup(study, seed, federation, module, simulation, x)
    if not len(joins):
        return setup
    later = everybody.select(joins)
    if simulation.group.size == 1:
        later = on_the_device_of(simulation, later)
    newcomers = Newcomers(
        everybody.select(torch.cat([trains, joins])),
        simulation_of(study, later, module, seed),
    )
    return replace(setup, newcomers=newcomers)


def with_epoch_period(study: Study, federation: Federation) -> Study:
    """The study with a period of [time], if the default depends on clients' data.

    The period is long enough for the slowest client, with the largest number of epochs
    of any algorithm.
    """
    time = study.time
    if time is None or time.period:
        return study
    most = int(batches_of(federation.train.size, study.run.batch_size).max())
    epochs = [entry.options.get("epochs", 0) * most for entry in study.algorithms]
    time = time.with_period(max(most_steps(study.algorithms), *epochs))
    time.refuse_longer(study.run.rounds * time.period)
    return replace(study, time=time)


def prepared_by(
    everybody: Federation, trains: Sequence[int], group: Group, *, like: bool = False
) -> Federation:
    """The federation with features that the training clients prepare together.

    The clients agree by averages, as in training. With `like`, the set of features
    stays as it is, and only the numbers that prepare features are fitted. Data without
    raw columns stay as they are.
    """
    if everybody.raw is None:
        return everybody
    clients = len(trains)
    here = Division(group, clients).part(everybody.select(torch.tensor(trains)))
    # Nobody asks for gradients: any module that takes these features will do.
    columns = here.features[0].numel()
    module = nn.Sequential(nn.Flatten(), nn.Linear(columns, 1))
    asked = Simulation(here, module, dtype=torch.float64, group=group)
    same = everybody.preparations if like else None
    return with_preparation(everybody, here, asked.at(0).average, clients, like=same)


def simulation_of(
    study: Study,
    federation: Federation,
    module: nn.Module,
    seed: int,
    group: Group | None = None,
) -> Simulation:
    """The simulation of a federation's clients, with the settings of the study."""
    run, device = study.run, study.run.place
    return Simulation(
        federation,
        module,
        objective=objective_of(study, federation),
        batch_size=run.batch_size,
        seed=seed,
        device=device,
        dtype=getattr(torch, run.dtype),
        loop=run.loop,
        compiled=wants_compiling(study, device) and can_compile(device),
        autocast=torch.bfloat16 if run.mixed_precision == "bf16" else None,
        group=group,
        home=home_of(study, module),
    )


def home_of(study: Study, module: nn.Module) -> Tensor | None:
    """The columns that `model.personal` keeps at home; None: all are shared."""
    patterns = study.model.get("personal", [])
    if not patterns:
        return None
    try:
        return columns(layout(module), patterns)
    except InputError as error:
        raise InputError(f"`model.personal` {patterns!r}: {error}") from None


def folds_for(study: Study, federation: Federation, seed: int) -> list[Federation]:
    """The federations to train and judge a setting on: this one, or its folds."""
    if study.tune is None or study.tune.folds == 0:
        return [federation]
    return folds_of(federation, study.tune.folds, seed)


def build_algorithm(
    entry: Entry, ingredients: Ingredients, *, timed: bool = False
) -> Algorithm:
    """The algorithm of an entry, made from these ingredients.

    It can only train as the entry does: in rounds, or as a flow in time.
    """
    maker = algorithm_factory(entry.name)
    options = trained_options(entry)
    if "epochs" in options:  # the clients are asked in epochs, see `asked_by`
        options = in_epochs(options, parameters_of(maker))
    given = []
    for name in ingredients_of(maker):
        given.append(ingredients(name, options.pop(name, None), entry.label))
    checks.options("algorithm", entry.name, parameters_of(maker), options)
    criterion = str(options.get("criterion", ""))
    if ":" in criterion:
        options["criterion"] = checks.import_object("criterion", criterion)
    with (
        checks.own_code("algorithm.name", entry.name),
        checks.own_code("criterion", criterion),
    ):
        algorithm = maker(*given, **options)
    if not isinstance(algorithm, Algorithm):
        raise InputError(
            f"{entry.name} must return a coterie Algorithm, got {algorithm!r}."
        )
    name, label = entry.name, entry.label
    algorithm = one_face(algorithm, name, label, timed=timed, waits=entry.waits)
    refuse_unused(name, maker, options, waits=algorithm.flow is None)
    if algorithm.flow is not None:
        refuse_in_time(entry.optimizer, options, maker, label)
    server = server_of(entry.optimizer)
    return algorithm if server is None else with_server(algorithm, server, label)


def _try_model(
    module: nn.Module, objective: Objective, federation: Federation, dtype: torch.dtype
) -> None:
    """Refuses a model that does not fit the data or the objective."""
    for name, parameter in module.named_parameters():
        if parameter.numel() == 0:
            raise InputError(f"`model` has a layer without units: {name} is empty.")
    # The numbers of samples and outputs differ, so that no shape fits by chance.
    count = 2 if federation.outputs != 2 else 3
    sample, targets = (
        few.to("cpu", dtype if few.is_floating_point() else None)
        for few in (federation.features[:count], federation.targets[:count])
    )
    try:
        with torch.no_grad():
            outputs = module(sample)
            if not isinstance(outputs, Tensor):
                raise TypeError(f"it must return a tensor, got {type(outputs)}")
            if objective.labelled and outputs.shape != (count, federation.outputs):
                raise ValueError(
                    f"it must give {federation.outputs} outputs for each sample, "
                    f"got shape {tuple(outputs.shape[1:])}"
                )
            refuse_misshapen(objective, outputs, targets)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"`model` does not fit the data `{federation.name}` with features of shape "
            f"{tuple(sample.shape[1:])}: {_reason(error)}."
        ) from error
    _try_gradient(module, objective, sample, targets)


def _try_gradient(
    module: nn.Module, objective: Objective, sample: Tensor, targets: Tensor
) -> None:
    """Refuses a model that cannot be computed for many clients at once."""
    points = ravel(module).repeat(2, 1)
    weight = points.new_full((2, len(sample)), 1 / len(sample))
    batch = Batch(torch.arange(len(sample)), weight)
    try:
        kernel = Kernel(module, objective, sample, targets)
        kernel.grad(points, batch)
        kernel.measure(points, batch)
    except Exception as error:
        raise InputError(
            "`model` and its objective cannot be computed for all clients at once: "
            f"{_reason(error)}."
        ) from error


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def wants_compiling(study: Study, device: torch.device) -> bool:
    """Whether a study asks for compiling, or is long enough for it."""
    if study.run.compile != "auto":
        return study.run.compile == "always"
    steps = most_steps(study.algorithms) * study.run.rounds
    return steps >= _COMPILE_AFTER[device.type]

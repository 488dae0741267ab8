"""The tables [run], [graph], [time], [privacy] and [diagnostics].

With [time], a study takes `run.rounds` rounds of `period` virtual seconds each. In this
time, every client does as much as it can. Algorithms in rounds wait for the slowest
client; with `waits = false` their flows do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checks import (
    InputError,
    call,
    expand_path,
    integer,
    number,
    one_of,
    option_hint,
    options,
    parameters_of,
)
from ..engine.clocks import Clock, Delays, TraceClock, clock, trace
from ..engine.laws import LAWS, POSITIVE, setting
from ..graphs.fastest import MIXINGS
from ..privacy.mechanisms.settings import Privacy, privacy_of
from ..records.sinks import SINKS

_LOOKED_AT = 200
"""Typical times come from this number of clients, and of tasks of each client."""

_CYCLES = 1e5  # a tenth of what clocks add up, because clients may begin late


@dataclass(frozen=True)
class RunTable:
    """The table [run]: how long, how often, where."""

    rounds: int = 100
    seeds: tuple[int, ...] = (0,)
    batch_size: int = 16  # 0 takes the whole training part
    participation: float = 1.0  # share of the clients in a round
    newcomers: int = 0  # clients held out of training, which join later
    evaluate_every: int = 0  # rounds; 0 evaluates about fifty times
    evaluate_train: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    compile: str = "auto"  # auto, always, never
    mixed_precision: str = "off"  # off, bf16
    loop: bool = False  # debug mode, client after client
    checkpoint_seconds: float = 30.0
    log: tuple[str, ...] = ()  # where evaluations are sent, see `records.sinks`
    pooled_test: bool = False  # measures models on all clients' test data, too
    baselines: bool = True  # a constant and scikit-learn, see `study.baselines`

    def __post_init__(self) -> None:
        integer("run.rounds", self.rounds, at_least=1)
        integer("run.batch_size", self.batch_size, at_least=0, at_most=1e9)
        number("run.participation", self.participation, above=0, at_most=1)
        integer("run.newcomers", self.newcomers, at_least=0)
        integer("run.evaluate_every", self.evaluate_every, at_least=0)
        number("run.checkpoint_seconds", self.checkpoint_seconds, at_least=0)
        one_of("run.dtype", self.dtype, ("float32", "float64"))
        one_of("run.compile", self.compile, ("auto", "always", "never"))
        one_of("run.mixed_precision", self.mixed_precision, ("off", "bf16"))
        if self.mixed_precision != "off" and self.dtype != "float32":
            raise InputError(
                "`run.mixed_precision` bf16 needs rows of `run.dtype` float32, got "
                f"{self.dtype}."
            )
        for name in self.log:
            one_of("run.log", name, SINKS)
        if not self.seeds:
            raise InputError("`run.seeds` must have at least one seed, got none.")
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise InputError(f"`run.seeds` must differ, got {seed} twice.")

    @property
    def every(self) -> int:
        """Rounds between two evaluations."""
        return self.evaluate_every or max(1, self.rounds // 50)

    @property
    def place(self) -> torch.device:
        """The device that holds the rows."""
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        # torch accepts "cpu:5", although there is only one CPU.
        if device is None or (self.device != "cpu" and device.type != "cuda"):
            raise InputError(f"`run.device` must be cpu or cuda, got {self.device!r}.")
        return device


def logs_of(given: Any) -> tuple[str, ...]:
    """The names in `run.log`, which may also be a single name."""
    names = [given] if isinstance(given, str) else given
    is_list = isinstance(names, list | tuple)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise InputError(f"`run.log` must be a name or a list of names, got {given!r}.")
    return tuple(names)


def refuse_no_patterns(personal: Any) -> None:
    """Refuses a `model.personal` that is not a list of names."""
    is_list = isinstance(personal, list | tuple)
    if not is_list or not all(isinstance(pattern, str) for pattern in personal):
        raise InputError(
            f"`model.personal` must be a list of names of modules, got {personal!r}."
        )


def privacy_table(table: dict[str, Any], tables: dict[str, Any]) -> Privacy:
    """The table [privacy], checked with the tables that would release more."""
    if "tune" in tables:
        raise InputError(
            "[tune] cannot be used with [privacy], because its trials would cost "
            "privacy: give the options instead."
        )
    run = tables.get("run", {})
    if isinstance(run, dict) and run.get("newcomers"):
        raise InputError(
            "`run.newcomers` must be 0 with [privacy], because newcomers get others' "
            f"models without noise, got {run['newcomers']}."
        )
    privacy = privacy_of(table)
    if privacy.secure and "time" in tables:
        raise InputError(
            "`privacy.aggregation` secure cannot be used with [time], because the "
            "server sees each answer: leave it out."
        )
    return privacy


@dataclass(frozen=True)
class Diagnostics:
    """The table [diagnostics]: how sharp losses are along a run."""

    every: int = 1  # evaluations between two measurements
    iterations: int = 20  # products with a Hessian for each measurement

    def __post_init__(self) -> None:
        integer("diagnostics.every", self.every, at_least=1)
        integer("diagnostics.iterations", self.iterations, at_least=1, at_most=1e4)


def text(name: str, value: Any) -> str:
    """Returns `value` if it is text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"`{name}` must be text, got {value!r}.")
    return value


def refuse_other_options(name: str, table: Mapping[str, Any], of: type) -> None:
    """Refuses keys that a table does not have."""
    names = [f.name for f in fields(of)]
    for key in table:
        if key not in names:
            hint = option_hint(name, key, names)
            raise InputError(f"[{name}] has no option {key!r}.{hint}")


def refuse_bad_options(name: str, table: Mapping[str, Any], of: type) -> None:
    """Refuses keys that a table does not have, and values of another type."""
    refuse_other_options(name, table, of)
    options(name, name, parameters_of(of, ingredients=0), table)


def diagnostics_of(table: dict[str, Any]) -> Diagnostics:
    """The table [diagnostics], checked."""
    refuse_bad_options("diagnostics", table, Diagnostics)
    return Diagnostics(**table)


@dataclass(frozen=True)
class Graph:
    """The table [graph]: which clients may learn from each other."""

    edges: str  # a graph by name, or a file of its edges
    mixing: str = "metropolis"  # what kind of matrix is made of them

    def table(self) -> dict[str, str]:
        """The table without a default `mixing`, so that older runs keep their names."""
        kind = {} if self.mixing == "metropolis" else {"mixing": self.mixing}
        return {"edges": self.edges, **kind}


def graph_of(table: dict[str, Any]) -> Graph:
    """The table [graph], checked."""
    refuse_other_options("graph", table, Graph)
    if "edges" not in table:
        raise InputError("[graph] needs `edges`; see `coterie list graphs`.")
    kind = table.get("mixing", "metropolis")
    one_of("graph.mixing", text("graph.mixing", kind), MIXINGS)
    return Graph(text("graph.edges", table["edges"]), kind)


@dataclass(frozen=True)
class Time:
    """The table [time]."""

    law: str = "constant(1)"  # seconds of a minibatch's gradient
    speeds: str | tuple[float, ...] = ()  # factors by client; (): all are equal
    availability: str = "always"  # or on_off(on, off)
    trace: str = ""  # a file of measured times, in place of a law
    links: str = ""  # law of the seconds that a message travels; empty: none
    rings: float = 0.0  # meetings of an edge per second, for pairs; 0: automatic
    capacity: int = 0  # clients that may work at the same time; 0: all
    period: float = 0.0  # seconds of a round; 0: until the slowest client is ready

    def __post_init__(self) -> None:
        """Refuses what cannot be used."""
        number("time.rings", self.rings, at_least=0, at_most=1e12)
        integer("time.capacity", self.capacity, at_least=0)
        number("time.period", self.period, at_least=0, at_most=1e12)
        given = (self.law, self.speeds or (), self.availability)
        if self.trace and given != ("constant(1)", (), "always"):
            raise InputError(
                "`time.trace` gives the times of all clients, so `time.law`, "
                "`time.speeds` and `time.availability` must not be set, got "
                f"{self.trace!r}."
            )
        if isinstance(self.speeds, tuple):
            for client, speed in enumerate(self.speeds):
                number(f"time.speeds[{client}]", speed, **POSITIVE)
        setting("time.law", self.law, LAWS)
        if self.links:
            setting("time.links", self.links, LAWS)
        self.clock(0)
        if not self.typical:
            raise InputError(f"`time.law` must take some time, got {self.law!r}.")

    def clock(self, seed: int, clients: int | None = None) -> Clock:
        """How long clients compute, for one seed of the study.

        If `clients` is given, the clock has times for this number of clients.
        """
        if self.trace:
            return trace(self.trace_file, clients=clients)
        known = len(self.speeds) if isinstance(self.speeds, tuple) else 0
        if known and clients is not None and known != clients:
            raise InputError(
                f"`time.speeds` must have one entry per client, {clients}, got {known}."
            )
        if isinstance(self.speeds, str) and self.speeds and clients is not None:
            count = call("time.speeds", self.speeds)[1][0]
            if count > clients:
                raise InputError(
                    f"`time.speeds` must not name more stragglers than there are "
                    f"clients, {clients}, got {self.speeds!r}."
                )
        return clock(self.law, self.speeds or None, self.availability, seed)

    @property
    def trace_file(self) -> Path:
        """The file of measured times."""
        return expand_path("time.trace", self.trace)

    def messages(self, seed: int) -> Delays | None:
        """How long messages travel."""
        return Delays(self.links, seed) if self.links else None

    @property
    def typical(self) -> float:
        """The median time of a gradient."""
        times = self.clock(0)
        known = len(self.speeds) if isinstance(self.speeds, tuple) else 0
        known = len(times) if isinstance(times, TraceClock) else known
        names = torch.arange(known or _LOOKED_AT)
        drawn = times.durations(names, torch.zeros_like(names), _LOOKED_AT)
        median = float(drawn.median())
        # Constant times are not rounded: rounds last exactly as long as they take.
        return median if drawn.min() == drawn.max() else float(f"{median:.3g}")

    @property
    def slowest(self) -> float:
        """The median time of a gradient of the slowest client."""
        if self.trace:
            times = self.clock(0)
            known = len(times) if isinstance(times, TraceClock) else _LOOKED_AT
            slowest = float(self.medians(times, torch.arange(known)).max())
            return max(self.typical, float(f"{slowest:.3g}"))
        factors = [1.0]
        if isinstance(self.speeds, tuple):
            factors = [*self.speeds] or factors
        elif self.speeds:
            count, factor = call("time.speeds", self.speeds)[1]
            factors += [factor] if count else []
        return replace(self, speeds=()).typical * max(factors)

    @staticmethod
    def medians(times: Clock, names: Tensor) -> Tensor:
        """The median time of a gradient of each client."""
        drawn = times.durations(names, torch.zeros_like(names), _LOOKED_AT)
        return drawn.median(1).values

    @property
    def typical_message(self) -> float:
        """The median time that a message travels."""
        messages = self.messages(0)
        if messages is None:
            return 0.0
        names = torch.arange(_LOOKED_AT)
        return float(messages.relay_delays(names, names, _LOOKED_AT).median())

    def with_period(self, steps: int) -> Time:
        """The table with a period; by default, one round waits for everybody.

        In that round, the slowest client computes `steps` typical gradients, and
        messages travel to it and back. So methods that wait finish their rounds, too.
        """
        if self.period:
            return self
        period = self.slowest * steps + 2 * self.typical_message
        return replace(self, period=period)

    def refuse_longer(self, seconds: float) -> None:
        """Refuses a study in which clients would go on and off too often."""
        word, means = call("time.availability", self.availability)
        if word == "on_off" and seconds > _CYCLES * sum(means):
            raise InputError(
                f"`time.availability` must change less often: {seconds:g} virtual "
                f"seconds of the study are more than {_CYCLES:g} times on and off, got "
                f"{self.availability!r}."
            )

    def rates(self, edges: int, work: float) -> Tensor:
        """(edges,) meetings per second of each edge, if tasks take `work` gradients."""
        rate = self.rings or 1 / (self.typical * work)
        return torch.full((edges,), rate, dtype=torch.float64)

    def table(self) -> dict[str, Any]:
        """The table as it stands in a file."""
        speeds = self.speeds
        return vars(self) | {
            "speeds": list(speeds) if isinstance(speeds, tuple) else speeds
        }

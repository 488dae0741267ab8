"""Runs of asynchronous SGD with a server, and what is measured of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.engine.clocks import Clock
from coterie.engine.events import run_events
from coterie.types import Algorithm

from .problems import REAL, Problem

WINDOW = 40  # updates in which a spike must have risen


class Trace(NamedTuple):
    """A run; entry k - 1 is about update k, or gradient k where the server waits."""

    gap: Tensor  # (K,)
    time: Tensor  # (K,)
    delay: Tensor  # (K,)


def follow(problem: Problem, method: Algorithm, paces: Clock, updates: int) -> Trace:
    """Runs a method from 0 until this number of gradients has arrived."""
    x = torch.zeros(len(problem.simulation), len(problem.optimum), dtype=REAL)
    models, times, delays = torch.zeros(updates, x.shape[1], dtype=REAL), [], []
    for event in run_events(
        method, problem.simulation, x, clock=paces, updates=updates
    ):
        models[len(times)] = event.state.x
        times.append(event.time)
        delays += event.delays
    return Trace(
        problem.gaps(models), torch.tensor(times, dtype=REAL), torch.tensor(delays)
    )


def final(gap: Tensor, share: float = 0.05) -> float:
    """The mean gap over the last of the updates."""
    return float(gap[-max(1, int(share * len(gap))) :].mean())


class Jump(NamedTuple):
    """How far a gap rises within few updates."""

    size: float  # log10 of gap(k + j) / gap(k)
    update: int  # k, counted from 1


def jump(gap: Tensor, window: int = WINDOW) -> Jump:
    """The largest rise over j = 0, ..., window updates."""
    windows = gap.unfold(0, min(window, len(gap) - 1) + 1, 1)
    rise = (windows.amax(1) / windows[:, 0]).log10()
    return Jump(float(rise.max()), int(rise.argmax()) + 1)


def time_to(trace: Trace, level: float) -> float:
    """When the gap is at a level for the first time."""
    there = (trace.gap <= level).nonzero().flatten()
    return float(trace.time[there[0]]) if len(there) else math.inf


def slope(gap: Tensor) -> float:
    """The decay of ln(gap) per update over the second half."""
    half = len(gap) // 2
    return float((gap[half] / gap[-1]).log()) / (len(gap) - 1 - half)

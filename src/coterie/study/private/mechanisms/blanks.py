"""Clients of the same shape without their data: asking them reveals nothing."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ....clients.groups import WithBlank
from ....clients.simulation import Simulation
from ...setup import Setup, simulation_of


def without_data(setup: Setup) -> Simulation:
    """The clients at hand, with as many samples as before, all of them zero.

    With these clients, a study finds out what it must refuse, and the types of a state.
    """
    here = setup.simulation.federation
    blank = replace(here, features=_zeros(here.features), targets=_zeros(here.targets))
    study = replace(setup.study, run=replace(setup.study.run, compile="never"))
    group = setup.simulation.group
    if isinstance(group, WithBlank):
        group = group.blank
    return simulation_of(study, blank, setup.module, setup.seed, group)


def _zeros(like: Tensor) -> Tensor:
    """Zeros of the same shape, which take no space."""
    return like.new_zeros(1).expand(like.shape)

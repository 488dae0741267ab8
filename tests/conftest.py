"""Tiny federations and a study that many tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import cache

import pytest
import torch
import typer.main
import typer.testing
from jaxtyping import config

from coterie import seeds
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation, Table
from coterie.study.experiment import Result, run_study
from support.browser import Browser, chromium
from support.federations import SIZES, divided, samples
from support.quadratics import quadratics, start
from support.rounds import simulate
from support.tuning_studies import made


def pytest_collection_finish() -> None:
    """All that was imported stays, so that no search for garbage looks at it again."""
    gc.freeze()


@pytest.fixture
def classification() -> Federation:
    """Six clients in two clusters that name two classes differently; D = 26."""
    rng = seeds.generator("tests", "classification")
    features = torch.randn(samples(), 12, generator=rng, dtype=torch.float64)
    owner = torch.arange(6).repeat_interleave(torch.tensor(SIZES) + 3)
    targets = ((features[:, 0] > 0).long() + owner) % 2
    table = Table("classification", features, targets, "classification", 2)
    return divided(table, clusters=torch.arange(6) % 2)


@pytest.fixture
def regression() -> Federation:
    """Six clients with noisy linear responses in two clusters; D = 5 without bias."""
    rng = seeds.generator("tests", "regression")
    real = torch.float64
    features = torch.randn(samples(), 5, generator=rng, dtype=real)
    best = torch.randn(2, 5, generator=rng, dtype=real)
    owner = torch.arange(6).repeat_interleave(torch.tensor(SIZES) + 3)
    noise = torch.randn(samples(), generator=rng, dtype=real)
    targets = (features * best[owner % 2]).sum(1) + 0.3 * noise
    table = Table("regression", features, targets, "regression", 1)
    return divided(table, clusters=torch.arange(6) % 2)


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    """Six clients whose losses are quadratics, with minibatches of three."""
    return simulate(quadratics(), batch_size=3)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    """Different starting models of these clients."""
    return start()


@pytest.fixture
def images() -> Federation:
    """Three clients with images of 10 x 10 in three classes."""
    sizes = (5, 3, 4)
    rng = seeds.generator("tests", "images")
    count = samples(sizes)
    features = torch.randn(count, 1, 10, 10, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 3, (count,), generator=rng)
    return divided(Table("images", features, targets, "classification", 3), sizes)


@pytest.fixture
def unchecked():
    """The type checker of the tests keeps out, as it does where others call us."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """No test can cut the power, which is all that fsync guards against."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_read_once():
    """Typer reads the signatures of all commands at each call; a process has one."""
    made = cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", made)
        patch.setattr(typer.testing, "_get_command", made)
        yield


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """A headless Chromium, in which a test opens its pages."""
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="session")
def tuned(tmp_path_factory) -> Result:
    """Two algorithms with two seeds; three of five settings train for six rounds."""
    return run_study(made({"halving": 2}), runs=tmp_path_factory.mktemp("r"))

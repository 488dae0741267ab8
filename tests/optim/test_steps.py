"""Claims about single steps: against torch.optim.SGD and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.optim import Descent, Schedule, descend, follow, sgd, step_size, velocity
from coterie.options import BelowOne, NotNegative, Positive, method
from coterie.types import Algorithm
from support.oracles import with_verbs
from support.refusals import refuses

REAL = torch.float64
N, D = 3, 4


@method()
def descends(
    *,
    lr: Positive = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
) -> Algorithm:
    return Algorithm()


def quadratic() -> tuple[torch.Tensor, torch.Tensor]:
    """Curvatures and optima of separable quadratics, one row per client."""
    rng = torch.Generator().manual_seed(0)
    curvature = 0.5 + torch.rand(N, D, generator=rng, dtype=REAL)
    return curvature, torch.randn(N, D, generator=rng, dtype=REAL)


class Quadratic:
    """Clients whose gradients are known: curvature (x - best)."""

    def grad(self, points):
        curvature, best = quadratic()
        return curvature * (points - best)

    def loss(self, points):
        raise NotImplementedError

    losses = hvp = same_batch = whole = validation = loss
    evaluate = class_counts = stream = loss


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("schedule", ["constant", "step(4, 0.5)"])
def test_steps_are_those_of_torch_sgd(momentum, weight_decay, schedule):
    settings = {"momentum": momentum, "weight_decay": weight_decay}
    ours = Descent(schedule=schedule, **settings)
    x = torch.ones(N, D, dtype=REAL)
    found, _ = sgd(Quadratic(), x, velocity(ours, x), rule=ours, steps=10, t=0)
    curvature, best = quadratic()
    for i in range(N):
        row = torch.ones(D, dtype=REAL, requires_grad=True)
        optimiser = torch.optim.SGD([row], lr=0.1, **settings)
        lower = torch.optim.lr_scheduler.StepLR(optimiser, 4, 0.5)
        for _ in range(10):
            optimiser.zero_grad()
            (curvature[i] * (row - best[i]).square()).sum().div(2).backward()
            optimiser.step()
            if schedule != "constant":
                lower.step()
        # Ten steps in double precision, with the operations in another order.
        assert_close(found[i], row.detach(), rtol=1e-12, atol=1e-13)


def test_steps_in_two_calls_are_those_of_one():
    ours = Descent(momentum=0.9, schedule="inverse(3)")
    x = torch.ones(N, D, dtype=REAL)
    whole = sgd(Quadratic(), x, velocity(ours, x), rule=ours, steps=7, t=0)
    half = sgd(Quadratic(), x, velocity(ours, x), rule=ours, steps=3, t=0)
    rest = sgd(Quadratic(), *half, rule=ours, steps=4, t=3)
    assert torch.equal(rest[0], whole[0]) and torch.equal(rest[1], whole[1])


def test_without_momentum_the_buffer_has_no_columns():
    x = torch.ones(N, D)
    assert velocity(Descent(), x).shape == (N, 0)
    assert torch.equal(velocity(Descent(momentum=0.5), x), torch.zeros(N, D))


def test_a_step_does_not_modify_models_and_momentum():
    ours = Descent(momentum=0.9, weight_decay=0.1)
    x, g, v = torch.ones(N, D), torch.full((N, D), 2.0), torch.full((N, D), 3.0)
    descend(ours, x, g, v, 0)
    # The gradient's memory may hold the result, which saves N D values in every step.
    assert (x == 1).all() and (v == 3).all()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ("step(2, 0.1)", [1, 1, 0.1, 0.1, 0.01]),
        ("inverse(2)", [1, 2 / 3, 2 / 4, 2 / 5, 2 / 6]),
        ("cosine(2)", [1, 0.5, 0, 0, 0]),
        ("cosine(3)", [1, 0.75, 0.25, 0, 0]),
    ],
)
def test_schedules_are_their_closed_forms(schedule, expected):
    ours = Descent(lr=2.0, schedule=schedule)
    sizes = [step_size(ours, t) / 2 for t in range(5)]
    assert sizes == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, r"`lr` must be greater than 0, got 0\.0"),
        ({"lr": -0.1}, r"`lr` must be greater than 0, got -0\.1"),
        ({"lr": math.nan}, "`lr` must be a finite number, got nan"),
        ({"lr": math.inf}, "`lr` must be a finite number, got inf"),
        ({"momentum": 1.0}, r"`momentum` must be less than 1, got 1\.0"),
        ({"momentum": -0.1}, r"`momentum` must be at least 0, got -0\.1"),
        ({"weight_decay": -1.0}, r"`weight_decay` must be at least 0, got -1\.0"),
        (
            {"schedule": "stop"},
            "`schedule` must be one of .*'stop'.*Did you mean 'step'",
        ),
        ({"schedule": "step(5)"}, r"`schedule` step takes 2 numbers, got 'step\(5\)'"),
        ({"schedule": "constant(1)"}, "`schedule` constant takes 0 numbers"),
        ({"schedule": "inverse(a)"}, r"`schedule` must have numbers .*'inverse\(a\)'"),
        ({"schedule": "step(5"}, r"`schedule` must read like .*'step\(5'"),
        ({"schedule": "inverse(0)"}, "`schedule.* must be greater than 0, got 0"),
        ({"schedule": "inverse(nan)"}, "`schedule.* must be a finite number, got nan"),
    ],
)
def test_bad_settings_are_refused_by_name_and_value(settings, message):
    refuses(message, descends, **settings)


def test_a_fraction_of_a_step_is_no_period():
    # The period counts steps; half a step would divide by zero later.
    refuses(r"schedule.*0\.5", descends, schedule="step(0.5, 0.1)")


@with_verbs
class Blended:
    """An oracle that only blends, with gradients known beforehand."""

    def __init__(self, active):
        self.active = active

    def blended(self, x, weights):
        return (weights @ Quadratic().grad(x)) * self.active[:, None]


def test_following_a_blend_leaves_inactive_models_and_momentum_as_they_were():
    ours = Descent(momentum=0.9, weight_decay=0.1)
    active = torch.tensor([True, False, True])
    x, v = torch.ones(N, D, dtype=REAL), torch.full((N, D), 0.5, dtype=REAL)
    weights = torch.eye(N, dtype=REAL)
    new_x, new_v = follow(Blended(active), weights, ours, x, v, steps=3, t=0)
    assert torch.equal(new_x[1], x[1]) and torch.equal(new_v[1], v[1])
    everybody = Blended(torch.ones(N, dtype=torch.bool))
    all_x, all_v = follow(everybody, weights, ours, x, v, steps=3, t=0)
    assert_close(new_x[active], all_x[active], rtol=0, atol=0)
    assert_close(new_v[active], all_v[active], rtol=0, atol=0)

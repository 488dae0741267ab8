"""Claims about the reproduction of chapters 10 and 11 of Even's thesis, tiny."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from coterie.cli.reproductions import items_of

items_of("even2024")
preconditioning = import_module("reproduce_even2024.preconditioning")
stability = import_module("reproduce_even2024.stability")
REAL = torch.float64


def small() -> object:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(60, preconditioning.D, generator=rng, dtype=REAL)
    return preconditioning.Logistic(rows)


def test_gradients_and_hessians_are_those_of_the_loss():
    loss, x = small(), torch.full((preconditioning.D,), 0.1, dtype=REAL)

    def value(x):
        rest = preconditioning.LAM / 2 * x @ x
        return torch.nn.functional.softplus(-(loss.rows @ x)).mean() + rest

    assert float(value(x)) == pytest.approx(loss.value(x))
    g = torch.autograd.functional.jacobian(value, x)
    torch.testing.assert_close(loss.grad(x), g)
    h = torch.autograd.functional.hessian(value, x)
    torch.testing.assert_close(loss.hessian(x), h)


def test_the_solver_finds_where_the_gradient_is_the_target():
    loss = small()
    target = torch.linspace(-0.1, 0.1, preconditioning.D, dtype=REAL)
    x = loss.where(torch.zeros_like(target), target, 0.5)
    torch.testing.assert_close(loss.grad(x) + 0.5 * x, target, rtol=1e-5, atol=1e-6)


def test_with_the_whole_loss_as_reference_two_rounds_are_enough():
    loss = small()
    course = preconditioning.preconditioned(loss, loss, 0.0)
    first = next(course)
    assert float(loss.grad(first).norm()) < 1e-6


def test_runs_with_several_steps_are_runs_one_by_one():
    x, best = stability.sparse(6, 9, 2, 0)
    steps = np.array([0.05, 0.2])
    both = stability.descend(x, best, steps, 6, 400)
    for j, lr in enumerate(steps):
        one = stability.descend(x, best, np.array([lr]), 6, 400)
        np.testing.assert_allclose(both.beta[j], one.beta[0], rtol=1e-9)
        np.testing.assert_allclose(both.gains.total[j], one.gains.total[0], rtol=1e-9)
    assert (both.losses[-1] < both.losses[0]).all()


def test_a_limit_on_rounds_is_not_shown_as_an_arrival():
    near, far = [1.0, 1e-9], [1.0, 0.5, 0.25]
    assert preconditioning.arrival(near) == "2"
    assert preconditioning.arrival(far) == "more than 3"
    parts = {1000: (0.2, far, near), 5000: (0.1, near, near)}
    race = preconditioning.Race(0, far, near, parts, near)
    claims = preconditioning.rounds_claims([race], 0.1)
    assert claims[0].ours == "more than 3, 2, 2"
    assert claims[1].ours == "more than 3, 2" and claims[2].ours == "2, 2"
    assert claims[3].ours == "not all arrive"
    assert [claim.agrees for claim in claims[:4]] == [None] * 4


def test_a_single_value_does_not_grow():
    assert stability._grows(np.array([1.0, 2.0])) is True
    assert stability._grows(np.array([2.0, 1.0])) is False
    assert stability._grows(np.array([1.0])) is None
    # Where no run arrives in time, nothing is said of limits and gains.
    with np.errstate(all="ignore"):
        claims = stability.limit_claims(stability.figure1(0, 1e-4), 0)
    assert [claim.agrees for claim in claims] == [None, None]


def test_pictures_of_chapters_10_and_11_say_what_their_lines_are(tmp_path, monkeypatch):
    drawn = {}

    def keep(path, panels):
        drawn[path.name] = panels

    monkeypatch.setattr(preconditioning, "draw_panels", keep)
    monkeypatch.setattr(stability, "draw_panels", keep)
    parts = {5000: (0.1, [1.0, 0.1], [1.0, 0.01])}
    races = [preconditioning.Race(k, [1.0], [1.0], parts, [1.0, 1e-12]) for k in (0, 1)]
    preconditioning.draw_rounds(tmp_path, races)
    for panel in drawn["rounds.html"]:
        lines = {line.name: line.y for line in panel.lines}
        assert lines["preconditioned, N = 5000"] == [1.0, 0.1]
        assert lines["SPAG, N = 5000"] == [1.0, 0.01]
        assert lines["DANE, 4 machines"] == [1.0, 1e-9]  # as far as one can see
    # Coordinates, losses and sharpness of each step, and 2 / step.
    x, best = stability.sparse(6, 9, 2, 0)
    steps = np.array([0.02, 0.5, 0.6])
    features = torch.from_numpy(x[0])
    targets = features @ torch.from_numpy(best)
    run = stability.descend(x, best, steps, 6, 970, every=stability.EVERY)
    stability.draw_edge(tmp_path, steps, run, features, targets)
    coordinates, losses, sharp = drawn["edge.html"]
    way = run.ways[:, 1]
    assert coordinates.lines[2].y == pytest.approx(way[:, 0] * way[:, 9])
    assert losses.log_y and len(coordinates.lines) == 6
    assert [line.y[0] for line in sharp.lines[3:]] == pytest.approx([4.0, 2 / 0.6])
    end = stability.sharpness(run.u[2], run.v[2], features, targets)
    assert sharp.lines[2].y[-1] == pytest.approx(end, rel=1e-3)  # a step later
    # Gains of coordinates, those of the support apart.
    gains = np.arange(1.0, 13.0).reshape(2, 6)
    stability.draw_shapes(tmp_path, {"GD": gains, "SGD": gains})
    support, rest = drawn["shapes.html"][0].lines
    assert support.x == [1, 2, 3, 4, 7, 8, 9, 10] and support.y == [0, 1, 2, 3] * 2
    assert rest.x == [5, 6, 11, 12] and rest.y == [4, 5] * 2

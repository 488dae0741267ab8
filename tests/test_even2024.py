"""Claims about the reproduction of chapter 3 of Even's thesis, at tiny sizes."""

from __future__ import annotations

import csv
import math
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from coterie.asynchronous.sgd import async_sgd
from coterie.checks import InputError
from coterie.clocks import clock
from coterie.reproduce import Claim, items_of

ITEMS = items_of("even2024")
items = SimpleNamespace(**ITEMS["chapter3"].__globals__)  # the rest of the file
REAL = torch.float64


def trace(gap, time=None, delay=None):
    """A run whose gaps are known."""
    gap = torch.tensor(gap, dtype=REAL)
    time = torch.arange(1.0, len(gap) + 1, dtype=REAL) if time is None else time
    delay = torch.ones(len(gap), dtype=torch.long) if delay is None else delay
    return items.Trace(gap, time, delay)


def tuned(gap, **given):
    return items.Tuned(trace(gap, **given), step=1.0, inside=True)


def test_the_item_makes_claims_and_records_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claims = ITEMS["chapter3"](["updates=150", "steps=2"])
    for claim in claims:
        assert isinstance(claim, Claim)
        assert all(isinstance(text, str) for text in (*claim[:3], claim.note))
        assert isinstance(claim.agrees, bool | None)
    # These hold for every order of arrivals, and so at every size.
    means = [claim for claim in claims if "mean delay" in claim.what]
    assert len(means) == 3
    assert all(claim.agrees for claim in means)
    folder = tmp_path / "runs" / "even2024-chapter3"
    with (folder / "chapter3.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows] == [claim.what for claim in claims]
    assert "plotly" in (folder / "figure31.html").read_text()


def test_settings_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="rounds"):
        ITEMS["chapter3"](["rounds=3"])


def test_workers_share_all_samples_and_draw_their_own():
    features, targets = items.random_data(10.0, 0.5, seed=0)
    simulation = items.least_squares(features, targets, 5, batch=16).simulation
    everyone = torch.arange(5)
    index, mask = simulation.federation.train.rows(everyone)
    assert mask.all()
    assert torch.equal(index, torch.arange(2000).expand(5, -1))
    drawn = simulation.minibatch(everyone, 7).index
    assert drawn.shape == (5, 16)
    assert len({tuple(row) for row in drawn.tolist()}) == 5


def test_gaps_are_differences_of_the_objective_and_gradients_are_its():
    features, targets = items.random_data(10.0, 0.5, seed=1)
    problem = items.least_squares(features, targets, 3, batch=0)

    def objective(x):
        return (features @ x - targets).square().mean() / 2

    x = torch.linspace(-1, 1, 50, dtype=REAL)
    best = torch.linalg.lstsq(features, targets[:, None]).solution[:, 0]
    assert_close(problem.gaps(x[None])[0], objective(x) - objective(best))
    g = problem.simulation.at(1).grads(x.repeat(3, 1))
    expected = features.T @ (features @ x - targets) / 2000
    assert_close(g, expected.repeat(3, 1))


def test_quadratics_have_the_eigenvalues_asked_for():
    problem = items.quadratic(torch.tensor([0.5, 2.0], dtype=REAL), 3)
    assert_close(problem.hessian, torch.tensor([[0.5, 0.0], [0.0, 2.0]], dtype=REAL))
    # (0.5 + 2) / 2 at the origin, since the minimiser is (1, 1).
    assert_close(problem.gaps(torch.zeros(1, 2, dtype=REAL)).item(), 1.25)


def test_a_run_in_turn_follows_the_plain_recursion():
    problem = items.quadratic(torch.ones(1, dtype=REAL), 3)
    run = items.follow(problem, async_sgd(lr=0.2), clock("constant(1)"), 30)
    x = [0.0]
    for k in range(1, 31):
        x.append(x[-1] - 0.2 * (x[max(0, k - 3)] - 1))
    expected = torch.tensor([(value - 1) ** 2 / 2 for value in x[1:]], dtype=REAL)
    assert_close(run.gap, expected)
    assert run.delay.tolist() == [min(k, 3) for k in range(1, 31)]
    assert run.time.tolist() == [1 + (k - 1) // 3 for k in range(1, 31)]


def test_a_jump_is_the_largest_rise_within_the_window():
    gap = torch.tensor([8.0, 4.0, 2.0, 20.0, 200.0, 1.0, 0.5], dtype=REAL)
    assert items.jump(gap, window=1) == pytest.approx((1.0, 3))
    assert items.jump(gap, window=2) == pytest.approx((2.0, 3))
    falling = torch.tensor([4.0, 2.0, 1.0], dtype=REAL)
    assert items.jump(falling, window=40).size == 0


def test_final_gap_slope_and_time_of_a_known_series():
    gap = [math.exp(-0.1 * k) for k in range(1, 101)]
    run = trace(gap, time=3 * torch.arange(1.0, 101.0, dtype=REAL))
    assert_close(items.final(run.gap), sum(gap[-5:]) / 5)
    assert_close(items.slope(run.gap), 0.1)
    assert items.time_to(run, math.exp(-1.95)) == 60  # after update 20
    assert items.time_to(run, 0.0) == math.inf


def test_diverged_runs_have_infinite_gaps():
    problem = items.quadratic(torch.ones(1, dtype=REAL), 2)
    x = torch.tensor([[math.nan], [math.inf], [1.0]], dtype=REAL)
    assert problem.gaps(x).tolist() == [math.inf, math.inf, 0.0]


def test_spikes_of_constant_steps_alone_agree_and_spikes_of_both_do_not():
    calm = [2.0**-k for k in range(100)]
    spiked = [*calm[:50], 100 * calm[49], *calm[51:]]

    def agreed(constant, adaptive):
        best = {items.CONSTANT: tuned(constant), items.ADAPTIVE: tuned(adaptive)}
        recipe = [{name: run.trace for name, run in best.items()}]
        return [claim.agrees for claim in items.jump_claims(best, recipe, 1.0)]

    assert agreed(spiked, calm) == [True, True]
    assert agreed(spiked, spiked) == [False, False]
    assert agreed(calm, calm) == [False, False]


def test_a_mean_delay_above_the_number_of_workers_would_be_seen():
    case = items.Case("made", 1.0, 0.0, [1.0, 1.0])
    for late, agrees in ((3, True), (4, False)):
        runs = tuned([1.0, 0.5], delay=torch.tensor([1, late]))
        best = dict.fromkeys((items.MINIBATCH, items.CONSTANT, items.ADAPTIVE), runs)
        claims = items.figure_claims(case, best)
        assert [c.agrees for c in claims if "mean delay" in c.what] == [agrees]


def test_the_time_to_a_gap_is_judged_against_a_quarter_of_the_speed_up():
    case = items.Case("made", 1.0, 0.0, [1.0, 1.0, 100.0])  # speed-up 67
    gap = [1.0, 0.1]
    fast = tuned(gap, time=torch.tensor([1.0, 2.0], dtype=REAL))
    for factor, agrees in ((70.0, [True, True]), (20.0, [False, True]), (15.0, None)):
        slow = tuned(gap, time=factor * torch.tensor([1.0, 2.0], dtype=REAL))
        best = {items.MINIBATCH: slow, items.CONSTANT: fast, items.ADAPTIVE: fast}
        found = [claim.agrees for claim in items.clock_claims(case, best)]
        assert found == (agrees or [False, False])

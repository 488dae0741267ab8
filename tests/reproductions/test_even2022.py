"""Claims about the reproduction of Even et al. (2022), at tiny sizes."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.all_for_one import all_for_one
from coterie.checks import InputError
from coterie.cli.reproductions import Claim, items_of
from coterie.types import ClientsInRounds, Oracle

ITEMS = items_of("even2022")
claims, coins, laws, regressions = (
    import_module(f"reproduce_even2022.{name}")
    for name in ("claims", "coins", "laws", "regressions")
)
REAL = torch.float64
SMALL = {
    "fig1a": ["clients=10", "rounds=12", "seeds=1", "repeats=4"],
    "fig1b": ["clients=10", "rounds=12", "seeds=1", "repeats=4"],
    "chapter8-figure": [
        "clients=20",
        "dimension=6",
        "clusters=2",
        "seeds=2",
        "grid=[0.1, 0.3]",
    ],
    "clusters": ["clients=100", "seeds=2"],
    "hard-instance": [
        "twins=[2, 4]",
        "groups=2",
        "far=2",
        "precision=2",
        "dimension=8",
    ],
    "scaling": ["sizes=[1, 2]", "data.samples=200", "run.seeds=[0]", "run.rounds=4"],
}


@pytest.fixture(autouse=True)
def folder_of_pictures(tmp_path, monkeypatch):
    """Items write pictures into `runs` of the working directory."""
    monkeypatch.chdir(tmp_path)


@cache
def small(name):
    """The claims of an item at its tiny size."""
    return ITEMS[name](SMALL[name])


@pytest.mark.parametrize("name", ITEMS)
def test_items_make_claims_that_can_be_shown(name):
    found = small(name)
    assert found
    for claim in found:
        assert isinstance(claim, Claim)
        assert all(isinstance(text, str) for text in (*claim[:3], claim.note))
        assert claim.agrees in (True, False, None)
        assert isinstance(claim.agrees, bool | None)


def test_designed_clusters_show_what_they_should_at_a_fifth_of_their_size():
    assert all(claim.agrees for claim in small("clusters"))


def test_statements_known_not_to_reproduce_are_shown_and_not_judged():
    found = [*small("chapter8-figure"), *small("fig1b")]
    open_ones = [claim for claim in found if claim.agrees is None]
    assert len(open_ones) == 4
    assert all(claim.note.startswith(("holds", "FAILS")) for claim in open_ones)


def test_unknown_settings_are_refused():
    with pytest.raises(InputError, match="seeds"):
        ITEMS["fig1a"](["seed=2"])


def test_a_law_is_a_federation_that_draws_anew_in_every_round():
    law = laws.means(lambda t: torch.full((3, 2), float(t), dtype=REAL))
    assert isinstance(law, ClientsInRounds)
    x = torch.ones(3, 2, dtype=REAL)
    for t in (1, 5, 2):
        call = law.at(t)
        assert isinstance(call, Oracle)
        # A square root and its square.
        assert_close(call.grads(x), x - t, rtol=1e-12, atol=1e-12)
        assert call.gradients.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["means", "regressions"])
def test_blended_gradients_are_those_of_a_loop(kind):
    rng = torch.Generator().manual_seed(0)
    x, a = torch.randn(2, 4, 3, generator=rng, dtype=REAL)
    b = torch.randn(4, generator=rng, dtype=REAL)
    weights = torch.rand(4, 4, generator=rng, dtype=REAL)
    weights[0, 1] = 0
    if kind == "means":
        law = laws.means(lambda t: a)
    else:
        law = laws.regressions(lambda t: (a, b), factor=2.0)

    def gradient(k, point):
        if kind == "means":
            return point - a[k]
        return 2 * (a[k] @ point - b[k]) * a[k]

    expected = torch.stack(
        [sum(weights[i, k] * gradient(k, x[i]) for k in range(4)) for i in range(4)]
    )
    call = law.at(1)
    # A sum of four products in another order.
    assert_close(call.blended(x, weights), expected, rtol=1e-12, atol=1e-12)
    assert call.gradients.tolist() == [4, 3, 4, 4]
    own = torch.stack([gradient(i, x[i]) for i in range(4)])
    assert_close(law.at(1).grads(x), own, rtol=1e-12, atol=1e-12)


def test_steps_of_one_over_k_average_the_samples_of_a_cluster():
    rng = torch.Generator().manual_seed(1)
    xi = torch.randn(5, 4, 3, generator=rng, dtype=REAL)
    law = laws.means(lambda t: xi[t - 1])
    weights = torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5))
    x = torch.zeros(4, 3, dtype=REAL)
    expected = xi.view(5, 2, 2, 3).mean((0, 2)).repeat_interleave(2, 0)
    one = all_for_one(weights.to(REAL), lr=1.0, schedule="inverse(1)")
    for method in (coins.average(weights), one):
        *_, last = laws.calls(method, law, x, 5)
        # Five steps in double precision; rho(W) = 1 to rounding.
        assert_close(last.state.x, expected, rtol=1e-12, atol=1e-12)


def test_optima_of_the_regressions_are_where_their_gradients_vanish():
    rng = torch.Generator().manual_seed(2)
    spread = 0.5 + torch.rand(2, 3, generator=rng, dtype=REAL)
    u = torch.randn(2, 3, generator=rng, dtype=REAL)
    # Many clients of two kinds: the mean of their gradients at the optimum.
    each = 20_000
    problem = regressions.sign_regressions(
        spread.repeat_interleave(each, 0), u.repeat_interleave(each, 0), 0, 1
    )
    g = problem.law.at(1).grads(problem.optima).view(2, each, 3)
    error = g.std(1) / math.sqrt(each)
    assert (g.mean(1).abs() < 4 * error).all()


def test_moment_distances_and_their_noise_are_those_of_the_matrices():
    rng = torch.Generator().manual_seed(3)
    a = torch.randn(2, 4, 3, generator=rng, dtype=REAL)
    b = torch.randn(2, 4, generator=rng, dtype=REAL)
    z = torch.cat([a, b[..., None]], 2)
    moment = torch.einsum("snd,sne->nde", z, z).flatten(1) / 2
    expected = torch.cdist(moment, moment).square()
    assert_close(regressions.moment_distance(a, b), expected, rtol=1e-10, atol=1e-10)

    n = 4000
    spread = torch.tensor([[0.5, 1.0, 0.2]], dtype=REAL).expand(n, 3)
    u = torch.tensor([[1.0, -2.0, 0.5]], dtype=REAL).expand(n, 3)
    problem = regressions.sign_regressions(spread, u, 0, 1)
    z = torch.cat([problem.early[0][0], problem.early[1][0][:, None]], 1)
    matrices = torch.einsum("nd,ne->nde", z, z).flatten(1)
    trace = float(matrices.var(0).sum())
    # Fourth moments of 4000 samples: known to a few per cent.
    assert regressions.moment_noise(problem) == pytest.approx(trace, rel=0.15)


def test_a_reference_is_near_by_the_spread_of_runs_and_no_further():
    runs = torch.tensor([0.9, 1.0, 1.1], dtype=REAL)
    # Three standard deviations of a difference are 0.35, and rounding 5 per cent.
    assert claims.near("x", 1.3, runs).agrees
    assert not claims.near("x", 1.5, runs).agrees
    assert claims.near("x", 2.0, runs, factor=2.0).agrees
    assert not claims.near("x", 0.3, runs, factor=2.0).agrees
    assert claims.near("x", 9.0, runs[:1]).agrees is None


def test_the_last_time_below_is_before_the_first_time_above():
    other = torch.ones(4)
    assert coins.last_below(torch.tensor([0.5, 0.5, 2.0, 0.5]), other) == 2
    assert coins.last_below(torch.full((4,), 0.5), other) == 4

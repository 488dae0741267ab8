"""Private averaging: what it returns, what it writes down, how well, at which noise."""

import math

import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import contraction, edges_of, gossip_matrix
from coterie.privacy import Exchange, Input, Ledger, Meetings
from coterie.privacy.accounting.gaussian import epsilon_of
from coterie_theory import gossip
from coterie_theory.decentralised.muffliato import error_bound, stopping_time
from coterie_theory.privacy import exact_losses, muffliato
from support.draws import rng as stream
from support.gossip_views import metropolis

SETTINGS = {"clip": 1.0, "noise": 0.5}


def rows(n: int, d: int = 3) -> torch.Tensor:
    return torch.randn(n, d, generator=stream(9), dtype=torch.float64) / 3


def noisy_rows(n: int, noise: float) -> torch.Tensor:
    """The rows with the noise of the first stream."""
    return rows(n) + noise * torch.randn(n, 3, generator=stream(), dtype=torch.float64)


def uniform(edges: torch.Tensor) -> torch.Tensor:
    return torch.full((len(edges),), 1 / len(edges), dtype=torch.float64)


def every_way(n: int, noise: float):
    """Each mechanism on a ring or random graphs, long enough to agree."""
    edges, x = edges_of("ring", n), rows(n)
    matrix, rates = gossip_matrix(edges, n), uniform(edges)

    def options() -> dict:
        return {"clip": 10.0, "noise": noise, "rng": stream()}

    yield muffliato.synchronous(x, matrix, rounds=60, **options())
    yield muffliato.time_varying(x, [matrix] * 150, **options())
    yield muffliato.with_dropouts(x, rounds=60, links=0.6, dropout=0.2, **options())
    yield muffliato.randomised(x, edges, rates, meetings=1000, **options())
    yield muffliato.accelerated(x, edges, rates, until=800.0, **options())
    if noise:
        yield muffliato.on_secret_graph(x, links=0.7, spread=1e9, **options())


def test_without_noise_all_end_at_the_mean():
    x = rows(8)
    for found in every_way(8, 0.0):
        torch.testing.assert_close(found.x, x.mean(0).expand(8, 3), atol=1e-6, rtol=0)


def test_with_noise_all_end_at_the_mean_of_noisy_rows():
    expected = noisy_rows(8, 0.3).mean(0).expand(8, 3)
    first, plain, _, *by_pairs, _ = every_way(8, 0.3)
    for found in (first, plain, *by_pairs):
        torch.testing.assert_close(found.x, expected, atol=1e-6, rtol=0)


def test_secret_graphs_end_near_the_mean():
    """The error is that of the mean of the noise, at most 5 s / sqrt(n)."""
    x = rows(8)
    given = {"clip": 10.0, "noise": 1e-4, "rng": stream()}
    found = muffliato.on_secret_graph(x, links=0.7, spread=1e9, **given)
    expected = x.mean(0).expand(8, 3)
    torch.testing.assert_close(found.x, expected, atol=2e-4, rtol=0)


def test_the_ledger_begins_with_what_clipping_and_noise_are():
    for found in every_way(8, 0.3):
        start = found.ledger.events[0]
        assert (start.round, start.sensitivity, start.noise) == (0, 20.0, 0.3)
        assert bool(start.who.all())


def replay(events, n, views=None):
    """Shares of inputs in every row at the end, and in what each receives by pairs."""
    x = torch.eye(n, dtype=torch.float64)
    z, before = x.clone(), x.clone()
    for event in events:
        if isinstance(event, Exchange):
            mixed = event.weights.to_dense() @ x
            mixed = event.gamma * mixed + (1 - event.gamma) * before
            before, x = x, mixed
            continue
        assert isinstance(event, Meetings)
        for (v, w), moved in zip(event.pairs.tolist(), event.moved, strict=True):
            for node, part in zip((v, w), moved, strict=True):
                way = part * (z[node] - x[node])
                x[node] = x[node] + way
                z[node] = z[node] - way
            if views is not None:
                views[v].append(x[w].clone())
                views[w].append(x[v].clone())
            step = event.gamma * (x[w] - x[v])
            z[v], z[w] = z[v] + step, z[w] - step
            mean = (x[v] + x[w]) / 2
            x[v], x[w] = mean, mean
    return x


def test_rounds_replayed_from_the_ledger_are_the_rows_that_came_back():
    n, noisy = 8, noisy_rows(8, 0.3)
    first, plain, *_ = every_way(n, 0.3)
    for found in (first, plain):
        again = replay(found.ledger.events[1:], n) @ noisy
        torch.testing.assert_close(found.x, again, atol=1e-9, rtol=0)


def test_meetings_replayed_from_the_ledger_are_the_rows_that_came_back():
    n, edges = 6, edges_of("ring", 6)
    given = rows(n), edges, uniform(edges)
    found = muffliato.randomised(*given, meetings=40, **SETTINGS, rng=stream())
    again = replay(found.ledger.events[1:], n) @ noisy_rows(n, 0.5)
    torch.testing.assert_close(found.x, again, atol=1e-9, rtol=0)


def test_accelerated_meetings_replayed_are_rows_at_the_last_meeting_of_each_node():
    """After it rows flow on, and nothing is sent."""
    n, x = 6, rows(6)
    edges = edges_of("ring", n)
    rates, rng = uniform(edges), stream()
    noisy = x + 0.5 * torch.randn(6, 3, generator=rng, dtype=torch.float64)
    rings = gossip.poisson_rings(rates, 40.0, rng)
    pace = gossip.pace(edges, rates)
    at_rings = gossip.accelerated(noisy, edges, rings, rings.times, pace).x
    found = muffliato.accelerated(x, edges, rates, until=40.0, **SETTINGS, rng=stream())
    again = replay(found.ledger.events[1:], n) @ noisy
    for v in range(n):
        last = int((edges[rings.which] == v).any(1).nonzero()[-1])
        torch.testing.assert_close(again[v], at_rings[last, v], atol=1e-9, rtol=0)


def test_messages_of_accelerated_gossip_are_what_the_ledger_says():
    """The account of its meetings, against views written down by loops."""
    n = 5
    edges = edges_of("ring", n)
    found = muffliato.accelerated(
        rows(n), edges, uniform(edges), until=12.0, **SETTINGS, rng=stream(3)
    )
    pace = gossip.pace(edges, uniform(edges))
    assert {e.gamma for e in found.ledger.events[1:]} == {pace.gamma}
    views = [[] for _ in range(n)]
    replay(found.ledger.events[1:], n, views)
    share = exact_losses(found.ledger).share
    for v in range(n):
        a = torch.stack(views[v])
        a[:, v] = 0
        expected = (torch.linalg.pinv(a, rtol=1e-9) @ a).diagonal()
        torch.testing.assert_close(share[:, v], expected, atol=1e-6, rtol=0)


def test_rows_are_clipped_before_noise_and_the_ledger_says_by_how_much_they_move():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    found = muffliato.noisy(x, clip=2.0, noise=0.0, rng=stream())
    expected = torch.tensor([[1.2, 1.6], [0.3, 0.4]]).double()
    torch.testing.assert_close(found.x, expected, atol=1e-7, rtol=1e-7)
    assert found.ledger.events[0].sensitivity == 4.0


def test_noise_has_the_promised_size():
    found = muffliato.noisy(torch.zeros(400, 50), clip=1.0, noise=0.7, rng=stream())
    # 20,000 draws: the standard error of the deviation is 0.5 percent.
    assert float(found.x.std()) == pytest.approx(0.7, rel=0.02)


def test_chebyshev_keeps_the_mean_from_the_first_round_on():
    x = rows(8) + 1
    matrix = metropolis("ring", 8)
    for rounds in (1, 2, 5):
        found = muffliato.synchronous(
            x, matrix, rounds=rounds, clip=10.0, noise=0.0, rng=stream()
        )
        torch.testing.assert_close(found.x.mean(0), x.mean(0))


@pytest.mark.parametrize(
    ("graph", "n", "noise", "known"),
    [("ring", 64, 1.0, (74, 0.00784)), ("hypercube", 64, 0.1, (12, 7.9e-5))],
)
def test_after_the_stopping_time_the_error_is_that_of_noise(graph, n, noise, known):
    """(6.8), and the error of the specification, in 400 runs at once."""
    matrix = metropolis(graph, n)
    gap = 1 - contraction([matrix])
    spread = 1 / 12  # of uniform numbers
    rounds = stopping_time(math.sqrt(gap), n, noise, spread=spread)
    assert rounds == known[0]
    x = torch.rand(n, 1, generator=stream(1), dtype=torch.float64) - 0.5
    runs = torch.randn(n, 400, generator=stream(2), dtype=torch.float64)
    mixed = gossip.chebyshev(x + noise * runs, matrix, rounds=rounds, gap=gap)
    error = float((mixed - x.mean()).square().mean()) / 2
    assert error <= error_bound(math.sqrt(gap), rounds, n, noise, spread=spread)
    assert error <= 3 * noise**2 / n
    assert error == pytest.approx(known[1], rel=0.25)


def test_by_random_pairs_the_corrected_rate_bounds_the_error_and_the_printed_fails():
    """Complete graph: squares contract by 1 - lambda_2/2 and not 1 - lambda_2."""
    n, meetings, runs = 8, 20, 150
    edges = edges_of("complete", n)
    chances = uniform(edges)
    gap = n / len(edges)  # lambda_2 of the Laplacian of chances
    x = torch.zeros(n, 1, dtype=torch.float64)
    x[0] = 1.0
    left = 0.0
    for seed in range(runs):
        found = muffliato.randomised(
            x, edges, chances, meetings=meetings, clip=2.0, noise=0.0, rng=stream(seed)
        )
        left += float((found.x - x.mean()).square().sum()) / runs
    start = float((x - x.mean()).square().sum())
    assert left == pytest.approx(start * (1 - gap / 2) ** meetings, rel=0.3)
    assert left > 3 * start * (1 - gap) ** meetings


def test_every_pair_is_drawn_with_its_chance_and_the_rest_is_idle():
    edges = edges_of("line", 3)
    given = torch.zeros(3, 1), edges, torch.tensor([0.5, 0.2])
    found = muffliato.randomised(*given, meetings=2000, **SETTINGS, rng=stream())
    met = torch.cat([event.pairs for event in found.ledger.events[1:]])
    first = float((met == torch.tensor([0, 1])).all(1).sum()) / 2000
    second = float((met == torch.tensor([1, 2])).all(1).sum()) / 2000
    assert (first, second) == pytest.approx((0.5, 0.2), abs=0.045)


def test_random_graphs_have_the_promised_number_of_edges():
    count = [len(muffliato.random_edges(40, 0.1, stream(seed))) for seed in range(50)]
    # 50 times 780 pairs: 3900 expected, with a deviation of 59.
    assert sum(count) == pytest.approx(3900, abs=4 * 59)
    full = muffliato.random_edges(7, 1.0, stream())
    assert full.tolist() == edges_of("complete", 7).tolist()


def test_those_who_dropped_out_keep_their_rows():
    found = muffliato.with_dropouts(
        rows(30), rounds=1, links=1.0, dropout=0.5, clip=9.0, noise=0.0, rng=stream()
    )
    weights = found.ledger.events[1].weights.to_dense()
    away = weights.diagonal() == 1
    assert 5 <= int(away.sum()) <= 25
    torch.testing.assert_close(found.x[away], rows(30)[away])
    torch.testing.assert_close(
        found.x[~away], rows(30)[~away].mean(0).expand(int((~away).sum()), 3)
    )


# How much noise.


def test_noise_is_the_least_with_which_the_pair_keeps_its_epsilon():
    matrix = metropolis("hypercube", 16)
    pair = (15, 0)
    found = muffliato.calibrate_noise(
        matrix, epsilon=2.0, delta=1e-5, clip=0.5, pairs=[pair]
    )
    ledger = Ledger(16, (Input(0, torch.ones(16).bool(), 1.0, found.noise),))
    for event in muffliato.exchanges(matrix, found.rounds):
        ledger.append(event)
    mu = float(exact_losses(ledger).mu[pair])
    assert epsilon_of(mu, 1e-5) == pytest.approx(2.0, rel=1e-6)
    gap = 1 - contraction([matrix])
    assert stopping_time(math.sqrt(gap), 16, found.noise) <= found.rounds


def test_all_pairs_need_the_noise_of_local_privacy():
    found = muffliato.calibrate_noise(
        metropolis("ring", 9), epsilon=1.0, delta=1e-5, clip=1
    )
    assert epsilon_of(2 / found.noise, 1e-5) == pytest.approx(1.0, rel=1e-9)


# What is refused.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise": -0.1}, "`noise` must be at least 0"),
        ({"clip": 0.0}, "`clip` must be greater than 0"),
        ({"rounds": -1}, "`rounds` must be at least 0"),
        ({"x": torch.tensor([[math.nan], [0.0]])}, "`x` must be finite"),
    ],
)
def test_bad_numbers_are_refused(change, said):
    given = {"rounds": 2, **SETTINGS, "rng": stream()} | change
    x = given.pop("x", torch.zeros(2, 1))
    with pytest.raises(InputError, match=said):
        muffliato.synchronous(x, metropolis("line", 2), **given)


def test_chances_above_1_a_matrix_without_gap_and_too_few_links_are_refused():
    edges = edges_of("line", 3)
    with pytest.raises(InputError, match="must sum to at most 1"):
        muffliato.randomised(
            rows(3), edges, torch.ones(2), meetings=1, **SETTINGS, rng=stream()
        )
    with pytest.raises(InputError, match="`gap` must be greater than"):
        muffliato.synchronous(
            rows(4), torch.eye(4).double(), rounds=1, **SETTINGS, rng=stream()
        )
    with pytest.raises(InputError, match="graphs was connected"):
        muffliato.connected_edges(30, 0.001, stream(), tries=3)

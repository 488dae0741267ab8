"""Models that walk: plain loops, special cases, messages, what is refused."""

from __future__ import annotations

import pytest
import torch

from coterie import seeds
from coterie.algorithms.token_sag import token_sag
from coterie.algorithms.token_sgd import token_sgd
from coterie.checks import InputError
from coterie.conformance.suite import check_algorithm
from coterie.engine.clocks import Delays
from coterie.engine.events import EventLoop
from coterie.graphs import WALKS, edges_of, gossip_matrix, hitting_time_of, walk_on
from coterie.types import Algorithm
from support.paces import EXACT, UNEVEN, question
from support.quadratics import REAL, D, hessians, quadratics, start
from support.rounds import simulate, solve

ANYWHERE = ("reshuffled", "iid")
STAR = gossip_matrix(edges_of("star", 6), 6)
RING = gossip_matrix(edges_of("ring", 6), 6)
ALL = gossip_matrix(edges_of("complete", 6), 6)


def matrix_for(walk: str) -> torch.Tensor:
    return ALL if walk in ANYWHERE else RING


def way(walk: str, text: str, steps: int, seed: int = 0) -> list[int]:
    """The places of a token, with the draws of a run."""
    go = walk_on(walk, edges_of(text, 6), 6)
    found, trail = [0], go.trail(0)
    for k in range(steps - 1):
        at, trail = go.following(found[-1], trail, seeds.generator(seed, "events", k))
        found.append(at)
    return found


def run_of(method: Algorithm, simulation, x, **options) -> EventLoop:
    return EventLoop(method, simulation, x, clock=UNEVEN, **options)


@pytest.mark.parametrize("walk", WALKS)
def test_token_sgd_is_a_loop_along_its_walk(simulation, walk):
    x = start()
    run = run_of(token_sgd(matrix_for(walk), lr=0.1, walk=walk), simulation, x)
    places = way(walk, "complete" if walk in ANYWHERE else "ring", 16)
    model, visits, hops = x.mean(0), [0] * 6, 0
    for t, at in enumerate(places):
        visits[at] += 1
        model = model - 0.1 * question(simulation, at, visits[at], model)
        event = run.step()
        assert event.clients == [at] and event.delays == [1]
        torch.testing.assert_close(run.personal(), model.repeat(6, 1), **EXACT)
        if t + 1 < len(places):
            hops += places[t + 1] != at
            assert run.sent == (0, D * hops)
    assert run.tasks == visits


def test_steps_make_all_clients_count_alike_where_the_walk_does_not(simulation):
    """On a star, a simple walk is at the hub every second step: pi is 1/2 and 1/10."""
    x = start()
    run = run_of(token_sgd(STAR, lr=0.1, walk="simple"), simulation, x)
    model, visits = x.mean(0), [0] * 6
    for at in way("simple", "star", 12):
        visits[at] += 1
        share = 1 / (6 * (0.5 if at == 0 else 0.1))
        model = model - 0.1 * share * question(simulation, at, visits[at], model)
        run.step()
        torch.testing.assert_close(run.personal()[0], model, **EXACT)
    assert visits[0] == 6


def test_waiting_tokens_pass_without_a_gradient_and_in_no_time(simulation):
    x = start()
    run = run_of(token_sgd(RING, lr=0.1, walk="cyclic", wait=4), simulation, x)
    model, time = x.mean(0), 0.0
    visits = [0] * 6
    takes = UNEVEN.durations(torch.arange(6), torch.zeros(6, dtype=torch.long), 4)
    drawn = [0] * 6
    for t in range(16):
        at = t % 6
        visits[at] += 1
        if t % 4 == 0:
            model = model - 0.1 * question(simulation, at, visits[at], model)
            time += float(takes[at, drawn[at]])
            drawn[at] += 1
        event = run.step()
        assert event.time == pytest.approx(time, rel=1e-12)
        torch.testing.assert_close(run.personal()[0], model, **EXACT)
        assert run.sent == (0, D * (t + 1))
    assert run.gradients.tolist() == [3.0 * count for count in drawn]


def delayed(walk: str, simulation, x, steps: int, gamma) -> list[torch.Tensor]:
    """Equation (7.6): the gradient at each client's last visit, or 0."""
    kept = torch.zeros(6, D, dtype=REAL)
    visits, last, model, models = [0] * 6, [0] * 6, x.mean(0), []
    text = "complete" if walk in ANYWHERE else "ring"
    for t, at in enumerate(way(walk, text, steps)):
        visits[at] += 1
        last[at] = t
        kept[at] = question(simulation, at, visits[at], model)
        model = model - gamma(t, max(t - s for s in last)) * kept.sum(0) / 6
        models.append(model)
    return models


@pytest.mark.parametrize("walk", WALKS)
def test_token_sag_moves_by_the_mean_of_all_last_gradients(simulation, walk):
    """Independent draws are SAG; a cycle is incremental SAG."""
    x, slowest = start(), hitting_time_of(walk_on(walk, edges_of("complete", 6), 6))
    if walk not in ANYWHERE:
        slowest = hitting_time_of(walk_on(walk, edges_of("ring", 6), 6))
    steady = token_sag(matrix_for(walk), lr=0.02, walk=walk, step="constant")
    exact = token_sag(matrix_for(walk), lr=0.1, walk=walk)
    cases = (
        (steady, lambda t, delay: 0.02),
        (exact, lambda t, delay: 0.1 / (slowest + delay)),
    )
    for method, gamma in cases:
        run = run_of(method, simulation, x)
        for model in delayed(walk, simulation, x, 16, gamma):
            run.step()
            state = run.state
            torch.testing.assert_close(run.personal()[3], model, **EXACT)
            torch.testing.assert_close(state.mean, state.kept.mean(0), **EXACT)


def test_steps_by_epochs_are_shorter_but_not_for_ever(simulation):
    x = start()
    by_epochs = run_of(token_sag(RING, walk="cyclic", step="epoch"), simulation, x)
    model, kept = x.mean(0), torch.zeros(6, D, dtype=REAL)
    for t in range(30):
        before = max(0, 6 * ((t + 1) // 6) - 6)  # where the last whole lap began
        kept[t % 6] = question(simulation, t % 6, t // 6 + 1, model)
        model = model - 0.1 / (6 + t - before) * kept.mean(0)
        by_epochs.step()
        torch.testing.assert_close(by_epochs.personal()[0], model, **EXACT)


def test_alone_both_are_gradient_descent():
    federation = quadratics().only(1)
    simulation, x = simulate(federation), start(1)
    one = torch.ones(1, 1, dtype=REAL)
    a, b = hessians(federation)
    for method in (token_sgd(one, lr=0.1), token_sag(one, lr=0.1, step="constant")):
        run, model = run_of(method, simulation, x), x[0]
        for _ in range(10):
            run.step()
            model = model - 0.1 * (a[0] @ model - b[0])
            torch.testing.assert_close(run.personal()[0], model, **EXACT)
        assert run.sent == (0, 0)


def test_sag_arrives_where_sgd_keeps_on_moving():
    """Without noise, where losses differ: the optimum of their mean."""
    exact_gradients = simulate(quadratics())
    a, b = hessians(quadratics())
    best = solve(a.mean(0)[None], b.mean(0)[None])[0]
    sag = run_of(token_sag(RING, lr=0.5, walk="cyclic"), exact_gradients, start())
    sgd = run_of(token_sgd(RING, lr=0.05, walk="cyclic"), exact_gradients, start())
    for _ in range(150):
        sag.step()
    for _ in range(60):
        sgd.step()
    assert (sag.personal()[0] - best).norm() < 1e-4
    assert 1e-3 < (sgd.personal()[0] - best).norm() < 0.5


def test_without_the_bar_algorithm_7_1_is_sgd():
    """x - gamma h_v in place of x - gamma h_bar moves by the last gradient alone."""
    a, b = hessians(quadratics())
    best = solve(a.mean(0)[None], b.mean(0)[None])[0]
    ends = {}
    for bar in (True, False):
        x, kept = start().mean(0), torch.zeros(6, D, dtype=REAL)
        for t in range(600):
            kept[t % 6] = a[t % 6] @ x - b[t % 6]
            x = x - 0.05 * (kept.mean(0) if bar else kept[t % 6])
        ends[bar] = float((x - best).norm())
    assert ends[True] < 1e-6 < 1e-3 < ends[False]
    # The method has the bar, and its step counts the mean.
    method = token_sag(RING, lr=0.05, walk="cyclic", step="constant")
    run = run_of(method, simulate(quadratics()), start())
    for _ in range(600):
        run.step()
    assert float((run.personal()[0] - best).norm()) < 1e-6


def test_tokens_travel_over_links_and_sag_carries_two_rows(simulation):
    links = Delays("constant(10)")
    for method, rows in ((token_sgd, 1), (token_sag, 2)):
        run = run_of(method(RING, walk="cyclic"), simulation, start(), links=links)
        spent = 0.0
        for t in range(8):
            event = run.step()
            first = torch.tensor([t // 6])
            pace = float(UNEVEN.durations(torch.tensor([t % 6]), first, 1))
            spent += pace + (10 if t else 0)
            assert event.time == pytest.approx(spent)
            assert run.sent == (0, rows * D * (t + 1))


@pytest.mark.parametrize("method", [token_sgd, token_sag])
def test_walks_for_which_edges_are_missing_are_refused(method):
    line = gossip_matrix(edges_of("line", 6), 6)
    with pytest.raises(InputError, match="cyclic needs an edge between clients 5 and"):
        method(line, walk="cyclic")


SETTINGS = [
    (token_sgd, {"walk": "non_backtracking", "wait": 3}),
    (token_sag, {"walk": "lazy", "step": "epoch", "lr": 0.5}),
]


@pytest.mark.parametrize(("method", "options"), SETTINGS)
def test_other_options_pass_the_suite_too(method, options):
    findings = check_algorithm(method, options=options)
    assert not [f for f in findings if f.outcome == "failed"]
    skipped = {f.check: f.message for f in findings if f.outcome == "skipped"}
    assert "by its place" in skipped["relabelling"]
    assert "waits for the client" in skipped["nobody_waits"]

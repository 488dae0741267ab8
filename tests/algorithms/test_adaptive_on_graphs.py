"""Claims about adaptive All-for-one on a graph: neighbours only, in all it does."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.adaptive_all_for_one import adaptive_all_for_one
from coterie.checks import InputError
from coterie.conformance import cases
from coterie.conformance.federations import small_federation
from coterie.conformance.suite import CHECKS
from coterie.engine import EventLoop, clock
from coterie.graphs import Mixing, adjacency, edges_of, gossip_matrix
from coterie.options import Count, Positive, Sizes, method
from coterie.types import Algorithm, traffic_of
from support.oracles import begun
from support.quadratics import EXACT, quadratics, start
from support.rounds import simulate, train

OPTIONS = {"lr": 0.1, "every": 2, "steps": 2, "criterion": "continuous"}


def ring(n=6):
    return gossip_matrix(edges_of("ring", n), n)


@pytest.mark.parametrize("estimator", ["split", "plain"])
def test_a_complete_graph_is_no_restriction(estimator):
    federation, x = quadratics(), start()
    sizes, options = federation.train.size, {**OPTIONS, "estimator": estimator}
    everybody = gossip_matrix(edges_of("complete", 6), 6)
    here = adaptive_all_for_one(sizes, everybody, **options)
    there = adaptive_all_for_one(sizes, **options)
    ours, theirs = (train(a, simulate(federation), x)[0] for a in (here, there))
    assert_close(ours[-1].x, theirs[-1].x, **EXACT)
    assert_close(ours[-1].belief.ratio, theirs[-1].belief.ratio, **EXACT)


def test_weights_messages_and_gradients_are_of_neighbours_alone():
    federation = quadratics()
    near, sizes = adjacency(ring()), federation.train.size
    algorithm = adaptive_all_for_one(sizes, ring(), **OPTIONS | {"lam": 0.01})
    simulation = simulate(federation)
    state = begun(algorithm, start())
    for t in (1, 2, 3):
        oracle = simulation.at(t)
        state, info = algorithm.step(state, oracle, torch.Generator())
        alpha = info["weights"]
        assert ((alpha == 0) | near | torch.eye(6, dtype=torch.bool)).all()
        links = torch.cat([sent.links for sent in oracle.sent])
        assert near[links[:, 0], links[:, 1]].all()
        # Three neighbourly rows of 5 each way to compare; a model and a gradient for
        # every weight in each of two steps.
        used = int(((alpha != 0) & near).sum())
        assert traffic_of(oracle.sent) == (0, 3 * 5 * 12 + 2 * 2 * 5 * used)
        # Own halves, and those for two readers; then one for each weight and step.
        times = 3 + 2 * (alpha != 0).sum(0)
        assert_close(oracle.gradients, (times * sizes).double())
    assert used > 0


def test_among_neighbours_the_ratios_are_those_of_all_pairs():
    """In the first comparison, where models are the same."""
    federation = quadratics()
    sizes, simulation = federation.train.size, simulate(federation)
    options = {**OPTIONS, "steps": 1, "estimator": "plain"}
    here = train(adaptive_all_for_one(sizes, ring(), **options), simulation, start(), 1)
    there = train(adaptive_all_for_one(sizes, **options), simulation, start(), 1)
    ratio, whole = (run[0][-1].belief.ratio for run in (here, there))
    near = adjacency(ring()) | torch.eye(6, dtype=torch.bool)
    assert_close(ratio, whole * near, **EXACT)
    assert (whole * ~near > 0).any()


@method()
def on_the_graph(
    precision: Sizes, mixing: Mixing, *, lr: Positive = 0.1, steps: Count = 1
) -> Algorithm:
    """Adaptive All-for-one on the graph of the checks."""
    return adaptive_all_for_one(precision, mixing, lr=lr, steps=steps, every=2)


@pytest.mark.parametrize("check", ["divided", "relabelling", "without_delays"])
def test_on_a_graph_it_passes_the_checks(check):
    face = "time" if check == "without_delays" else "rounds"
    CHECKS[check].run(cases.Case(on_the_graph, face=face))


def test_in_time_only_neighbours_are_served():
    federation = small_federation()
    sizes = federation.train.size
    algorithm = adaptive_all_for_one(sizes, ring(), every=1, criterion="continuous")
    run = cases.advance(cases.event_loop(algorithm, federation), 60)
    near = adjacency(ring()) | torch.eye(6, dtype=torch.bool)
    assert ((run.state.alpha == 0) | near).all()
    assert (run.state.seen.cross[~near] == 0).all()
    assert (run.state.alpha * ~torch.eye(6, dtype=torch.bool) > 0).any()


def test_a_graph_of_others_is_refused():
    federation = quadratics()
    algorithm = adaptive_all_for_one(None, ring(), **OPTIONS)
    with pytest.raises(InputError, match=r"`graph` must have shape .5, 5."):
        algorithm.init(start(5), simulate(federation.select(torch.arange(5))).at(0))


class AlongTheRing:
    """Links of neighbours alone, which note who is asked for."""

    def __init__(self):
        self.asked = set()

    def delays(self, edges, first, count):
        self.asked |= {frozenset(pair) for pair in edges.tolist()}
        return torch.full((len(edges), count), 0.25, dtype=torch.float64)

    def relay_delays(self, clients, first, count):
        raise AssertionError("nothing goes by way of a server.")


def test_in_time_messages_take_as_long_as_the_links_of_the_graph():
    federation, links = quadratics(), AlongTheRing()
    algorithm = adaptive_all_for_one(
        federation.train.size, ring(), every=2, criterion="continuous"
    )
    paces = clock("lognormal(1, 0.5)")
    run = EventLoop(algorithm, simulate(federation), start(), clock=paces, links=links)
    for _ in range(80):
        run.step()
    assert links.asked == {frozenset(pair) for pair in edges_of("ring", 6).tolist()}
    assert run.sent.server == 0 and run.sent.peers > 0

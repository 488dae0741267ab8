"""What several methods have in common: costs, the absent, and that they help."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.apfl import apfl
from coterie.algorithms.cobo import cobo
from coterie.algorithms.coteries import coteries
from coterie.algorithms.ditto import ditto
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.ifca import ifca
from coterie.algorithms.local import local
from coterie.algorithms.neighbours import neighbours
from coterie.algorithms.per_fedavg import per_fedavg
from coterie.algorithms.pfedme import pfedme
from coterie.algorithms.wga_bc import wga_bc
from coterie.graphs import edges_of, gossip_matrix
from support.federations import error, similar_clients
from support.oracles import begun, told
from support.quadratics import SAMPLES, D, quadratics, start
from support.rounds import ACTIVE, STEPS, simulate, train


@pytest.mark.parametrize(
    ("algorithm", "steps", "each"),
    [
        (apfl(SAMPLES, steps=4), 4, 2),
        (ditto(SAMPLES, steps=4), 4, 2),
        (ifca(SAMPLES, steps=4), 4, 1),  # choosing costs none
        (pfedme(SAMPLES, steps=4, inner_steps=5), 4, 5),
        (per_fedavg(SAMPLES, steps=5, variant="fo"), 5, 2),
        *((per_fedavg(SAMPLES, steps=5, variant=v), 5, 4) for v in ("exact", "hf")),
        (wga_bc(SAMPLES, steps=2), 2, 1 + 3),  # its own, and of each of the others
        *((cobo(steps=2, meetings=m), 2, 1 + m) for m in (0, 2, 3)),
    ],
)
def test_a_step_costs_so_many_gradients(algorithm, steps, each):
    """Minibatches have three samples."""
    oracle = simulate(quadratics(), 3).at(1, ACTIVE)
    algorithm.step(begun(algorithm, start()), oracle, seeds.generator(0))
    assert_close(oracle.gradients, steps * each * 3 * ACTIVE.double())


@pytest.mark.parametrize(
    ("algorithm", "names", "sent"),
    [
        (fedavg(SAMPLES, momentum=0.9), "v", 2 * 4 * D),
        (
            apfl(SAMPLES, adaptive=True, momentum=0.9),
            "v a w_velocity v_velocity",
            2 * 4 * D,
        ),
        (pfedme(SAMPLES, momentum=0.9), "theta v", 2 * 4 * D),
        # In each of 3 steps 4 clients send a model to 3 others and get a gradient back.
        (wga_bc(SAMPLES, **STEPS), "x v c", 3 * 4 * 3 * 2 * D),
    ],
    ids=["fedavg", "apfl", "pfedme", "wga_bc"],
)
def test_clients_that_take_no_part_keep_what_is_theirs(algorithm, names, sent):
    simulation = simulate(quadratics())
    before = train(algorithm, simulation, start(), 2)[0][-1]
    oracle = simulation.at(3, ACTIVE)
    after, info = algorithm.step(before, oracle, seeds.generator(0))
    for name in names.split():
        changed = getattr(after, name) != getattr(before, name)
        assert torch.equal(changed.reshape(6, -1).any(1), ACTIVE), name
    assert told(info, oracle)["sent"] == sent


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("name", ["coteries", "neighbours"])
def test_own_models_are_those_of_local_training_bitwise(classification, name, active):
    x, simulation = start(6, 26), simulate(classification, 3)
    ring, sizes = gossip_matrix(edges_of("ring", 6), 6), classification.train.size
    made = coteries(sizes, **STEPS, sure=0.05)
    made = made if name == "coteries" else neighbours(ring, **STEPS, sure=0.05)
    ours = train(made, simulation, x, 6, active)[0]
    theirs = train(local(**STEPS), simulation, x, 6, active)[0]
    for here, there in zip(ours, theirs, strict=True):
        assert torch.equal(here.own, there.x)
        assert torch.equal(here.own_velocity, there.v)


@pytest.mark.parametrize(
    ("factory", "options", "rounds"),
    [
        # The Hessians are 2 I, so that lam = 2 goes half the way to the global model.
        (ditto, {"lam": 2.0, "lr": 0.3}, 30),
        (pfedme, {"lam": 2.0, "lr": 0.5, "inner_lr": 0.2}, 30),
        # The global model is there after a few steps. The mixture then leaves it: 18
        # go about half the way, since 1 - lr 2 alpha^2 of it is left by each.
        (apfl, {"lr": 0.3, "alpha": 0.27}, 18),
    ],
)
def test_half_the_way_beats_local_and_fedavg_where_clients_are_similar_and_samples_few(
    factory, options, rounds
):
    """The expected squared error is half of that of either."""
    federation = similar_clients()
    simulation, sizes = simulate(federation), federation.train.size
    methods = factory(sizes, **options), local(lr=0.3), fedavg(sizes, lr=0.3)
    ends = []
    for algorithm in methods:
        last = train(algorithm, simulation, torch.zeros_like(federation.optima), rounds)
        oracle = simulation.at(rounds, purpose="use")
        ends.append(error(federation, algorithm.personal(last[0][-1], oracle)))
    assert ends[0] < 0.7 * min(ends[1:])

"""Claims about the methods: limit cases, closed forms and loops over modules."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.adaptive_all_for_one import adaptive_all_for_one
from coterie.algorithms.all_for_one import all_for_one
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.fedavg_finetune import fedavg_finetune
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.data import synthetic
from coterie.data.federation import federate
from coterie.types import Comparison
from support import federations
from support.oracles import begun, with_verbs
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, start
from support.rounds import ACTIVE, STEPS, drawn, gradient, loss, simulate, train

N, D = 6, 26
SIZES = torch.tensor(federations.SIZES)
X = start(N, D)
EQUAL = X[:1].expand(N, D).clone()


def test_local_training_equals_torch_sgd_of_every_client(classification):
    simulation = simulate(classification, 3)
    states, infos = train(local(**STEPS), simulation, X)
    for i in range(N):
        row = X[i].clone().requires_grad_()
        optimiser = torch.optim.SGD([row], momentum=0.5, weight_decay=0.01)
        for t in range(1, 5):
            for question in range(3):
                past = 3 * (t - 1) + question
                optimiser.param_groups[0]["lr"] = 0.2 * 9 / (9 + past)
                optimiser.zero_grad()
                index = drawn(simulation, t, i, question)
                loss(classification, row, index).backward()
                optimiser.step()
        assert_close(states[-1].x[i], row.detach(), **EXACT)
    assert all(info["sent"] == 0 for info in infos)


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedsgd_is_descent_on_the_loss_of_those_of_the_round(
    classification, weighting, active
):
    """The loss of their pooled data, or the mean of their losses."""
    algorithm = fedavg(SIZES, lr=0.3, steps=1, weighting=weighting)
    states, infos = train(algorithm, simulate(classification), X, 4, active)
    who = range(N) if active is None else active.nonzero()[:, 0].tolist()
    parts = [mine(classification, i) for i in who]
    parts = [torch.cat(parts)] if weighting == "samples" else parts
    w = X.mean(0)
    for _ in range(4):
        g = torch.stack([gradient(classification, w, part) for part in parts])
        w = w - 0.3 * g.mean(0)
    assert_close(states[-1].x, w.expand(N, D), **EXACT)
    # Down to all of them and up again.
    assert all(info["sent"] == 2 * len(who) * D for info in infos)


def test_fedavg_averages_locally_trained_copies(classification):
    algorithm = fedavg(SIZES, lr=0.3, steps=3)
    states, _ = train(algorithm, simulate(classification), X, 2)
    w = X.mean(0)
    for _ in range(2):
        copies = []
        for i in range(N):
            copy = w
            for _ in range(3):
                copy = copy - 0.3 * gradient(
                    classification, copy, mine(classification, i)
                )
            copies.append(copy)
        w = (SIZES.to(REAL) / SIZES.sum()) @ torch.stack(copies)
    assert_close(states[-1].x, w.expand(N, D), **EXACT)


def test_fine_tuning_of_no_steps_is_fedavg(classification):
    simulation = simulate(classification, 3)
    tuned = fedavg_finetune(SIZES, tune_steps=0, **STEPS)
    plain = fedavg(SIZES, **STEPS)
    states, _ = train(tuned, simulation, X)
    expected, _ = train(plain, simulation, X)
    oracle = simulation.at(4, purpose="use")
    assert torch.equal(states[-1].x, expected[-1].x)
    assert torch.equal(tuned.personal(states[-1], oracle), expected[-1].x)


def test_fine_tuning_is_local_descent_from_the_global_model(classification):
    simulation = simulate(classification)
    algorithm = fedavg_finetune(
        SIZES, tune_steps=2, tune_lr=0.7, weight_decay=0.1, momentum=0.9
    )
    states, _ = train(algorithm, simulation, X)
    before = states[-1].x.clone()
    found = algorithm.personal(states[-1], simulation.at(4, purpose="use"))
    for i in range(N):
        row = before[i]
        for _ in range(2):
            g = gradient(classification, row, mine(classification, i)) + 0.1 * row
            row = row - 0.7 * g
        assert_close(found[i], row, **EXACT)
    assert torch.equal(states[-1].x, before)


def test_all_for_one_with_identity_weights_is_local_training(classification):
    simulation = simulate(classification)
    ours, infos = train(all_for_one(torch.eye(N), **STEPS), simulation, X)
    alone, _ = train(local(**STEPS), simulation, X)
    assert_close(ours[-1].x, alone[-1].x, **EXACT)
    assert infos[-1]["sent"] == 0


def test_all_for_one_with_uniform_weights_from_an_equal_start_is_fedsgd(classification):
    simulation = simulate(classification)
    uniform = torch.full((N, N), 1 / N, dtype=REAL)
    ours, infos = train(all_for_one(uniform, lr=0.3), simulation, EQUAL)
    together, _ = train(fedavg(SIZES, lr=0.3, weighting="uniform"), simulation, EQUAL)
    assert_close(ours[-1].x, together[-1].x, **EXACT)
    # Over every ordered pair a model goes out and a gradient comes back.
    assert infos[-1]["sent"] == 2 * N * (N - 1) * D


@pytest.mark.parametrize("active", [ACTIVE | True, ACTIVE], ids=["all", "some"])
def test_all_for_one_follows_the_weighted_sum_of_gradients(classification, active):
    """Weights are rescaled among the clients of the round."""
    rng = torch.Generator().manual_seed(1)
    weights = torch.rand(N, N, generator=rng, dtype=REAL)  # rows need not sum to 1
    kept = weights * active
    kept = kept * weights.sum(1, keepdim=True) / kept.sum(1, keepdim=True)
    options = {"lr": 0.05, "steps": 2, "weight_decay": 0.1, "momentum": 0.5}
    algorithm = all_for_one(weights, **options)
    states, infos = train(algorithm, simulate(classification), X, 1, active)
    parts = [mine(classification, k) for k in range(N)]
    for i in range(N):
        row, v = X[i], torch.zeros(D, dtype=REAL)
        for _ in range(2 if active[i] else 0):
            g = torch.stack([gradient(classification, row, part) for part in parts])
            v = 0.5 * v + kept[i] @ g + 0.1 * row
            row = row - 0.05 * v
        assert_close(states[-1].x[i], row, **EXACT)
    assert torch.equal(states[-1].x[~active], X[~active])
    here = int(active.sum())
    assert infos[0]["sent"] == 2 * 2 * here * (here - 1) * D


@with_verbs
class Scripted:
    """An oracle whose comparisons are written by the test and whose gradients are 0."""

    def __init__(self, seen: Comparison) -> None:
        self.seen, self.active = seen, seen.known.diagonal()
        self.compared = self.blends = 0

    def grads(self, x):
        return torch.zeros_like(x)

    def blended(self, x, weights):
        self.blends += 1
        return torch.zeros_like(x)

    def compare(self, x, *, samples=None, pairs=None):
        self.compared += 1
        return self.seen


def comparison(ratio: torch.Tensor, known: torch.Tensor | None = None) -> Comparison:
    """The comparison of noiseless clients with these similarity ratios."""
    n = len(ratio)
    if known is None:
        known = torch.ones(n, n, dtype=torch.bool)
    one, zero = torch.ones(n, dtype=REAL), torch.zeros(n, n, dtype=REAL)
    return Comparison(1 - ratio, one, 1 - ratio, one, zero, 0.1 * one, 10 * one, known)


def weights_of(algorithm, *oracles) -> torch.Tensor:
    """The weights after rounds with these oracles."""
    state = begun(algorithm, torch.zeros(len(oracles[0].active), 2, dtype=REAL))
    for t, oracle in enumerate(oracles):
        state, info = algorithm.step(state, oracle, seeds.generator(t))
    return info["weights"]


RATIO = torch.tensor([[1.0, 0.5, 0.0], [0.05, 1.0, 0.8], [0.2, 0.9, 1.0]], dtype=REAL)
PRECISION = torch.tensor([1.0, 2.0, 4.0], dtype=REAL)


def test_twins_with_equal_noise_get_uniform_weights():
    twins = Scripted(comparison(torch.ones(4, 4, dtype=REAL)))
    for criterion in ("binary", "continuous"):
        for rule in ("paper", "normalised"):
            algorithm = adaptive_all_for_one(
                torch.ones(4), criterion=criterion, rule=rule
            )
            found = weights_of(algorithm, twins)
            assert_close(found, torch.full((4, 4), 0.25, dtype=REAL), **EXACT)


@pytest.mark.parametrize(
    ("criterion", "phi"),
    [
        ("binary", lambda r: (r >= 0.1).to(REAL)),
        ("continuous", lambda r: r),
        (lambda r: r**2, lambda r: r**2),
    ],
    ids=["binary", "continuous", "any function of definition 1"],
)
def test_weights_are_those_of_the_closed_form(criterion, phi):
    algorithm = adaptive_all_for_one(PRECISION, criterion=criterion, lam=0.1)
    found = weights_of(algorithm, Scripted(comparison(RATIO)))
    # alpha_ik = s_k phi(r_ik) / sum_j s_j r_ij phi(r_ij)
    trust = PRECISION * phi(RATIO)
    assert_close(found, trust / (trust * RATIO).sum(1, keepdim=True), **EXACT)


def test_a_criterion_above_the_ratio_is_refused():
    with pytest.raises(InputError, match=r"phi\(x\) <= x"):
        adaptive_all_for_one(PRECISION, criterion=lambda r: 2 * r)


@pytest.mark.parametrize("criterion", ["binary", "continuous"])
def test_normalised_rows_sum_to_one_and_those_of_the_paper_to_no_less(criterion):
    oracle = Scripted(comparison(RATIO))
    paper = weights_of(adaptive_all_for_one(PRECISION, criterion=criterion), oracle)
    ours = weights_of(
        adaptive_all_for_one(PRECISION, criterion=criterion, rule="normalised"), oracle
    )
    one = torch.ones(3, dtype=REAL)
    assert_close(ours.sum(1), one, **EXACT)
    assert (paper.sum(1) >= 1 - 1e-12).all()
    assert_close(ours, paper / paper.sum(1, keepdim=True), **EXACT)


def test_estimators_use_what_they_promise():
    seen = comparison(RATIO)
    # Plain norms are larger, here by 0.3 of distances and by 0.01 of the own one.
    seen = seen._replace(pooled=seen.pooled + 0.3, own_pooled=seen.own_pooled + 0.01)
    split = adaptive_all_for_one(PRECISION, criterion="continuous")
    plain = adaptive_all_for_one(PRECISION, criterion="continuous", estimator="plain")
    off = 1 - torch.eye(3, dtype=REAL)
    biased = (1 - (1 - RATIO + 0.3 * off) / 1.01).clamp(0, 1) * off + torch.eye(3)
    for algorithm, ratio in ((split, RATIO), (plain, biased)):
        expected = PRECISION * ratio / (PRECISION * ratio**2).sum(1, keepdim=True)
        assert_close(weights_of(algorithm, Scripted(seen)), expected, **EXACT)


def ratios_of_equation_1(federation, x) -> torch.Tensor:
    """(1 - Z_ik / Z_i)_+ with gradients of all training samples, pair by pair."""
    ratio = torch.eye(N, dtype=REAL)
    for i in range(N):
        own = gradient(federation, x[i], mine(federation, i))
        for k in set(range(N)) - {i}:
            other = gradient(federation, x[i], mine(federation, k))
            ratio[i, k] = 1 - (own - other).square().sum() / own.square().sum()
    return ratio.clamp(min=0)


@pytest.mark.parametrize("loop", [False, True])
def test_plain_weights_are_those_of_equation_1_whatever_the_seed(classification, loop):
    """Sizes are odd, so the halves of a client's samples are unequal."""
    x, sizes = 3 * EQUAL, SIZES.to(REAL)
    ratio = ratios_of_equation_1(classification, x)
    assert int(((ratio > 0.01) & (ratio < 0.99)).sum()) > N  # most say something
    expected = sizes * ratio / (sizes * ratio**2).sum(1, keepdim=True)
    algorithm = adaptive_all_for_one(
        SIZES, estimator="plain", criterion="continuous", memory=0.0, confidence=0.0
    )
    for seed in range(3):
        module = models.build(lambda: models.linear((12,), 2), 0, REAL)
        simulation = Simulation(
            classification, module, seed=seed, dtype=REAL, loop=loop
        )
        _, infos = train(algorithm, simulation, x, 1)
        assert_close(infos[0]["weights"], expected, **EXACT)


def test_precision_is_estimated_from_the_noise_of_the_clients():
    noise = torch.tensor([0.1, 0.2, 0.2], dtype=REAL)
    seen = comparison(torch.ones(3, 3, dtype=REAL))._replace(variance=noise)
    found = weights_of(adaptive_all_for_one(None), Scripted(seen))
    expected = torch.tensor([0.5, 0.25, 0.25], dtype=REAL).expand(3, 3)
    assert_close(found, expected, **EXACT)


def test_estimated_precision_does_not_depend_on_how_often_a_client_was_compared():
    ratio, active = torch.ones(3, 3, dtype=REAL), torch.tensor([True, True, False])
    some = Scripted(comparison(ratio, active[:, None] & active))
    algorithm = adaptive_all_for_one(None, every=1, confidence=0.0)
    found = weights_of(algorithm, some, Scripted(comparison(ratio)))
    assert_close(found, torch.full((3, 3), 1 / 3, dtype=REAL), **EXACT)
    # The third client was never compared.
    half = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 0]], dtype=REAL)
    assert_close(weights_of(adaptive_all_for_one(None), some), half, **EXACT)


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (1, 3), (3, 2), (5, 20)])
def test_comparisons_are_made_every_so_many_steps_exactly(steps, every):
    algorithm = adaptive_all_for_one(PRECISION, steps=steps, every=every)
    state = begun(algorithm, torch.zeros(3, 2, dtype=REAL))
    for t in range(10):
        oracle = Scripted(comparison(RATIO))
        state, _ = algorithm.step(state, oracle, seeds.generator(t))
        due = sum(s % every == 0 for s in range(t * steps, (t + 1) * steps))
        assert oracle.compared == due
        assert oracle.blends == steps


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("estimator", ["plain", "split"])
def test_what_adaptive_all_for_one_sends(classification, estimator, active):
    algorithm = adaptive_all_for_one(None, every=2, estimator=estimator)
    _, infos = train(algorithm, simulate(classification), X, 4, active)
    here = N if active is None else 4
    for t, info in enumerate(infos):
        # A comparison takes a model and two gradients to each of the others; a step a
        # model over each link with a weight, and a gradient back.
        compared = 3 * here * (here - 1) * D if t % 2 == 0 else 0
        links = int((info["weights"] != 0).sum()) - here
        assert links > 0
        assert info["sent"] == compared + 2 * links * D


@pytest.mark.parametrize("estimator", ["plain", "split"])
def test_clusters_are_found_at_the_start_of_the_noiseless_problem(estimator):
    table = synthetic.linear(clients=6, dimension=2, samples=200, seed=1)
    owner = table.group
    role = torch.tensor([0] * 180 + [1] * 10 + [2] * 10).repeat(6)
    federation = federate(table, owner, role, clusters=table.clusters)
    module = models.build(lambda: models.linear((2,), 1, bias=False), 0, REAL)
    simulation = Simulation(federation, module, batch_size=2, dtype=REAL)
    algorithm = adaptive_all_for_one(torch.ones(6), estimator=estimator, lr=0.25)
    _, infos = train(algorithm, simulation, torch.zeros(6, 2, dtype=REAL), 1)
    same = table.clusters[:, None] == table.clusters
    assert torch.equal(infos[0]["weights"] != 0, same)


def test_variances_tell_the_speed_up_over_training_alone():
    twins = Scripted(comparison(torch.ones(4, 4, dtype=REAL)))
    algorithm = adaptive_all_for_one(torch.ones(4), criterion="continuous")
    state = begun(algorithm, torch.zeros(4, 2, dtype=REAL))
    _, info = algorithm.step(state, twins, seeds.generator(0))
    quarter = torch.full((4,), 0.25, dtype=REAL)
    assert_close(info["effective_variance"], quarter, **EXACT)
    assert_close(info["noise_variance"], quarter, **EXACT)


def test_adaptive_collaboration_leaves_inactive_clients_alone(classification):
    algorithm = adaptive_all_for_one(SIZES.to(REAL), momentum=0.5, weight_decay=0.1)
    states, infos = train(algorithm, simulate(classification, 3), X, 3, ACTIVE)
    assert torch.equal(states[-1].x[~ACTIVE], X[~ACTIVE])
    assert (states[-1].x[ACTIVE] != X[ACTIVE]).any(1).all()
    for info in infos:
        assert (info["weights"][:, ~ACTIVE] == 0).all()
        assert (info["weights"][~ACTIVE] == 0).all()

"""Claims about Per-FedAvg: limit cases, closed forms and independent loops."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.fedavg_finetune import fedavg_finetune
from coterie.algorithms.local import local
from coterie.algorithms.per_fedavg import per_fedavg
from coterie.cli.reproductions import papers
from coterie.clients.simulation import Simulation
from coterie.data.federation import Table, federate
from coterie.engine.rounds import run_rounds
from coterie.optim.hessians import hessian_times
from support import federations
from support.oracles import begun
from support.plain_clients import mine
from support.quadratics import EXACT, REAL
from support.rounds import ACTIVE, drawn, train
from support.simulated import module, simulate

N = 6
SIZES = torch.tensor(federations.SIZES)
VARIANTS = ("exact", "hf", "fo")


def start(federation) -> torch.Tensor:
    """Different models of all clients; the method begins with their mean."""
    rng = torch.Generator().manual_seed(0)
    row = models.ravel(module(federation))
    noise = torch.randn(N, len(row), generator=rng, dtype=REAL)
    return row + noise / 2


class Losses:
    """The losses of single clients as functions of a vector, by autograd alone."""

    def __init__(self, federation) -> None:
        self.federation, self.module = federation, module(federation)
        self.shapes = [(n, p.shape) for n, p in self.module.named_parameters()]

    def at(self, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        parts = w.split([shape.numel() for _, shape in self.shapes])
        pairs = zip(self.shapes, parts, strict=True)
        named = {name: part.view(shape) for (name, shape), part in pairs}
        outputs = functional_call(
            self.module, named, (self.federation.features[index],)
        )
        targets = self.federation.targets[index]
        if self.federation.task == "classification":
            return nn.functional.cross_entropy(outputs, targets)
        return (outputs[:, 0] - targets).square().mean()

    def grad(self, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return grad(self.at)(w, index)

    def hvp(self, w, u, index) -> torch.Tensor:
        return torch.func.jvp(lambda p: self.grad(p, index), (w,), (u,))[1]


def by_hand(simulation, w, rounds, *, alpha, lr, steps, variant, delta=1e-3):
    """Algorithm 1 in plain loops over clients and steps, uniform over ACTIVE."""
    losses = Losses(simulation.federation)
    for t in range(1, rounds + 1):
        copies = []
        for i in ACTIVE.nonzero()[:, 0].tolist():
            v = w
            for k in range(steps):
                d1, d2, d3 = (drawn(simulation, t, i, 3 * k + j) for j in range(3))
                u = losses.grad(v - alpha * losses.grad(v, d1), d2)
                h = delta / u.norm()
                product = {
                    "exact": lambda v=v, u=u, d=d3: losses.hvp(v, u, d),
                    "hf": lambda v=v, u=u, d=d3, h=h: (
                        (losses.grad(v + h * u, d) - losses.grad(v - h * u, d)) / 2 / h
                    ),
                    "fo": lambda u=u: torch.zeros_like(u),
                }[variant]()
                v = v - lr * (u - alpha * product)
            copies.append(v)
        w = torch.stack(copies).mean(0)
    return w


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_algorithm_1_on_three_minibatches_a_step(classification, variant):
    simulation = simulate(classification)
    options = {"alpha": 0.5, "lr": 0.3, "steps": 3, "variant": variant}
    x = start(classification)
    states, infos = train(per_fedavg(SIZES, **options), simulation, x, 2, ACTIVE)
    expected = by_hand(simulation, x.mean(0), 2, **options)
    # Rounding of the differences is a thousand times larger, as delta = 1e-3.
    exact = {"rtol": 1e-7, "atol": 1e-9} if variant == "hf" else EXACT
    assert_close(states[-1].x, expected.repeat(N, 1), **exact)
    # The model goes down to the four who take part, and up again.
    assert infos[-1]["sent"] == 2 * 4 * len(expected)


def test_the_step_has_the_hessian_term(classification):
    simulation = simulate(classification)
    x, found = start(classification), {}
    for variant in VARIANTS:
        algorithm = per_fedavg(SIZES, alpha=0.5, lr=0.3, steps=3, variant=variant)
        found[variant] = train(algorithm, simulation, x, 2)[0][-1].x
    moved = (found["exact"] - x.mean(0)).norm()
    assert (found["fo"] - found["exact"]).norm() > 0.01 * moved
    # Differences at a distance of 1e-3 are wrong by about its square.
    assert (found["hf"] - found["exact"]).norm() < 1e-5 * moved


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_a_step_inside_it_is_fedavg(classification, variant):
    simulation = simulate(classification, batch_size=0)
    options = {"lr": 0.3, "steps": 3, "momentum": 0.5, "weight_decay": 0.1}
    ours = per_fedavg(SIZES, alpha=0.0, variant=variant, **options)
    theirs = fedavg(SIZES, weighting="uniform", **options)
    x = start(classification)
    states, infos = train(ours, simulation, x, 3, ACTIVE)
    expected, known = train(theirs, simulation, x, 3, ACTIVE)
    assert_close(states[-1].x, expected[-1].x, **EXACT)
    assert_close(states[-1].v, expected[-1].v, **EXACT)
    assert infos[-1]["sent"] == known[-1]["sent"]


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_one_step_of_everybody_is_gradient_descent_on_the_loss_after_tuning(
    classification, weighting
):
    alpha, lr = 0.7, 0.4
    algorithm = per_fedavg(
        SIZES, alpha=alpha, lr=lr, variant="exact", weighting=weighting
    )
    x, simulation = start(classification), simulate(classification, batch_size=0)
    states, _ = train(algorithm, simulation, x, 4)
    losses = Losses(classification)
    p = (SIZES if weighting == "samples" else torch.ones(N)).to(REAL)
    p = p / p.sum()

    def after_tuning(w: torch.Tensor) -> torch.Tensor:
        here = [mine(classification, i) for i in range(N)]
        each = [losses.at(w - alpha * losses.grad(w, h), h) for h in here]
        return p @ torch.stack(each)

    w = x.mean(0)
    for _ in range(4):
        w = w - lr * grad(after_tuning)(w)
    assert_close(states[-1].x, w.repeat(N, 1), **EXACT)


def test_on_quadratics_differences_are_exact_and_first_order_lacks_alpha_h_u(
    regression,
):
    simulation = simulate(regression)
    alpha, lr = 0.05, 0.1
    found = {}
    for variant in VARIANTS:
        algorithm = per_fedavg(SIZES, alpha=alpha, lr=lr, variant=variant)
        found[variant] = train(algorithm, simulation, start(regression), 1)[0][-1].x
    assert_close(found["hf"], found["exact"], rtol=0, atol=1e-6)
    w, lacking = start(regression).mean(0), []
    for i in range(N):
        d1, d2, d3 = (drawn(simulation, 1, i, j) for j in range(3))

        def g(w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            features, targets = regression.features[index], regression.targets[index]
            return 2 / 3 * features.T @ (features @ w - targets)

        u = g(w - alpha * g(w, d1), d2)
        features = regression.features[d3]
        lacking.append(lr * alpha * 2 / 3 * features.T @ (features @ u))
    gap = found["exact"] - found["fo"]
    assert_close(gap, torch.stack(lacking).mean(0).repeat(N, 1), **EXACT)


def bowls(curvatures, centres) -> Simulation:
    """Clients with f_i(w) = a_i (w - c_i)^2 / 2 exactly, by two equal samples each."""
    feature = (curvatures / 2).sqrt()
    target = feature * centres
    clients, samples = len(curvatures), 4
    owner = torch.arange(clients).repeat_interleave(samples)
    role = torch.tensor([0, 0, 1, 2]).repeat(clients)
    table = Table("bowls", feature[owner, None], target[owner], "regression", 1)
    return simulate(federate(table, owner, role), batch_size=0)


A = torch.tensor([0.5, 1.0, 1.9], dtype=REAL)
C = torch.tensor([3.0, -1.0, -5.0], dtype=REAL)
ALPHA = 0.5  # times the largest curvature 0.95
# F_i = a_i (1 - alpha a_i)^2 (w - c_i)^2 / 2. Without the Hessian term the factor
# (1 - alpha a_i) is not squared, and FedAvg has none.
POWER = {"fedavg": 0, "fo": 1, "exact": 2, "hf": 2}


def end_of(method: str):
    """The algorithm, the bowls, and the state after descent in a few long steps."""
    simulation, sizes = bowls(A, C), torch.full((3,), 2)
    curvature = float((A * (1 - ALPHA * A) ** POWER[method]).mean())
    lr = 0.9 / curvature  # a tenth of the way is left after a step
    if method == "fedavg":
        update = {"tune_steps": 1, "tune_lr": ALPHA}
        algorithm = fedavg_finetune(sizes, lr=lr, **update)
    else:
        algorithm = per_fedavg(sizes, alpha=ALPHA, lr=lr, variant=method)
    states, _ = train(algorithm, simulation, torch.zeros(3, 1, dtype=REAL), 12)
    return algorithm, simulation, states[-1]


@pytest.mark.parametrize("method", POWER)
def test_every_variant_ends_where_its_formula_says(method):
    *_, state = end_of(method)
    pull = A * (1 - ALPHA * A) ** POWER[method]
    found = state.x
    assert_close(found, (pull @ C / pull.sum()).repeat(3, 1), rtol=0, atol=1e-8)


def test_where_curvature_matters_the_hessian_term_lowers_the_loss_after_tuning():
    loss = {}
    for method in POWER:
        algorithm, simulation, state = end_of(method)
        tuned = algorithm.personal(state, simulation.at(12, purpose="use"))
        loss[method] = float(simulation.evaluate(tuned, "train")["loss"].mean())
    assert loss["hf"] == pytest.approx(loss["exact"], rel=1e-8)
    assert loss["hf"] < 0.95 * loss["fo"] < 0.95 * loss["fedavg"]


class Quiet:
    """Clients of one known loss, without any data."""

    def __init__(self, loss) -> None:
        self._loss = loss

    def loss(self, points):
        return torch.stack([self._loss(row) for row in points])

    def same_batch(self):
        return self

    whole = validation = same_batch
    evaluate = class_counts = stream = same_batch  # nobody asks

    def losses(self, points):
        return self.loss(points)[:, None]

    def grad(self, points):
        return torch.stack([grad(self._loss)(row) for row in points])

    def hvp(self, points, vectors):
        pairs = zip(points, vectors, strict=True)
        return torch.stack(
            [torch.func.jvp(grad(self._loss), (w,), (u,))[1] for w, u in pairs]
        )


def wavy(w: torch.Tensor) -> torch.Tensor:
    return torch.log(1 + (3 * w).exp()).sum() + w.prod()


def quadratic(w: torch.Tensor) -> torch.Tensor:
    return (torch.tensor([1.0, 2.0, 5.0], dtype=w.dtype) * w.square()).sum() / 2


@pytest.mark.parametrize("loss", [quadratic, wavy])
def test_differences_as_printed_in_section_5_are_not_the_hessian_times_u(loss):
    clients = Quiet(loss)
    w = torch.tensor([[0.3, -0.2, 0.9]], dtype=REAL)
    u = torch.tensor([[-1.0, 0.4, 0.5]], dtype=REAL)
    right = clients.hvp(w, u)
    ours = hessian_times(clients, w, u, variant="hf", delta=1e-3)
    assert_close(ours, right, rtol=1e-5, atol=1e-6)
    delta = 1e-3
    # "(grad phi(u + delta v) - grad phi(u - delta v)) / delta" for the Hessian at w
    # times u, whichever of the two vectors v is meant to be.
    for v in (u, w):
        printed = (clients.grad(u + delta * v) - clients.grad(u - delta * v)) / delta
        assert (printed - right).norm() > 0.5 * right.norm()
    # With the right centre and direction the divisor is still wrong: twice too much.
    doubled = (clients.grad(w + delta * u) - clients.grad(w - delta * u)) / delta
    assert_close(doubled, 2 * right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_differences_are_good_in_single_precision_for_gradients_of_any_length(
    classification, scale
):
    w = start(classification)
    u = scale * Losses(classification).grad(w[0], mine(classification, 0))

    def asked(program, dtype):
        simulation = simulate(classification, batch_size=0, dtype=dtype)
        return simulation.at(1).each(program, w.to(dtype), u.expand_as(w).to(dtype))[0]

    right = asked(product_exact, REAL)
    ours = asked(product_of_differences, torch.float32).to(REAL)
    # Rounding at a distance of 1e-3 from models of norm 4: 6e-8 / 1e-3 and a little.
    assert (ours - right).norm() < 1e-3 * right.norm()
    as_printed = asked(product_at_fixed_delta, torch.float32).to(REAL)
    wrong = float((as_printed - right).norm() / right.norm())
    assert (wrong < 1e-3) == (scale == 1.0)


def product_exact(clients, w, u):
    return hessian_times(clients, w, u, variant="exact", delta=1e-3)


def product_of_differences(clients, w, u):
    return hessian_times(clients, w, u, variant="hf", delta=1e-3)


def product_at_fixed_delta(clients, w, u):
    return (clients.grad(w + 1e-3 * u) - clients.grad(w - 1e-3 * u)) / 2e-3


def test_at_a_stationary_point_differences_are_zero():
    clients = Quiet(quadratic)
    nothing = torch.zeros(2, 3)
    found = hessian_times(clients, torch.ones(2, 3), nothing, variant="hf", delta=1e-3)
    assert torch.equal(found, nothing)


def test_it_is_tuned_with_steps_of_alpha_on_fresh_training_minibatches(classification):
    simulation = simulate(classification)
    algorithm = per_fedavg(SIZES, alpha=0.7, tune_steps=2)
    state = begun(algorithm, start(classification))
    found = algorithm.personal(state, simulation.at(1))
    losses = Losses(classification)
    for i in range(N):
        row = state.x[i]
        for k in range(2):
            row = row - 0.7 * losses.grad(row, drawn(simulation, 1, i, k))
        assert_close(found[i], row, **EXACT)


def test_tuning_sees_no_validation_or_test_data(classification):
    algorithm = per_fedavg(SIZES, alpha=0.7)
    state = begun(algorithm, start(classification))
    kept = torch.cat([mine(classification, i) for i in range(N)])
    features = torch.full_like(classification.features, torch.nan)
    features[kept] = classification.features[kept]
    blind = replace(classification, features=features)
    seen, unseen = (
        algorithm.personal(state, simulate(federation, batch_size=0).at(1))
        for federation in (classification, blind)
    )
    assert torch.equal(seen, unseen)


def test_without_tuning_everybody_uses_the_common_start(classification):
    algorithm = per_fedavg(SIZES, tune_steps=0)
    simulation = simulate(classification, batch_size=0)
    states, _ = train(algorithm, simulation, start(classification), 2)
    found = algorithm.personal(states[-1], simulation.at(2))
    assert torch.equal(found, states[-1].x)


def test_newcomers_tune_the_common_start_on_their_own_training_data(classification):
    algorithm = per_fedavg(SIZES, alpha=0.7, tune_steps=2)
    four = per_fedavg(SIZES[:4], alpha=0.7)
    state = begun(four, start(classification)[:4])
    newcomers = simulate(classification.only(5), batch_size=0)
    found = algorithm.welcome(state, newcomers.at(3, purpose="use"))
    losses, row = Losses(classification), state.x[0]
    for _ in range(2):
        row = row - 0.7 * losses.grad(row, mine(classification, 5))
    assert_close(found, row[None], **EXACT)


def opinions(clients: int, dimension: int) -> Simulation:
    """Eight samples each; odd clients call the two classes the other way round."""
    rng = seeds.generator("tests", "opinions")
    owner = torch.arange(clients).repeat_interleave(8 + 1 + 40)
    role = torch.tensor([0] * 8 + [1] + [2] * 40).repeat(clients)
    features = torch.randn(len(owner), dimension, generator=rng, dtype=REAL)
    targets = ((features[:, 0] > 0).long() + owner) % 2
    table = Table("opinions", features, targets, "classification", 2)
    module = models.build(
        lambda: models.mlp((dimension,), 2, hidden=(6,), activation="tanh"), 0, REAL
    )
    return Simulation(federate(table, owner, role), module, batch_size=8, dtype=REAL)


def test_one_step_adapts_where_clients_contradict_each_other():
    simulation = opinions(16, 6)
    x = models.ravel(simulation.kernel.module).repeat(16, 1)
    sizes = simulation.federation.train.size

    def accuracy(algorithm) -> float:
        *_, last = run_rounds(algorithm, simulation, x, rounds=40)
        used = algorithm.personal(last.state, simulation.at(40, purpose="use"))
        return float(simulation.evaluate(used, "test")["accuracy"].mean())

    ours = accuracy(per_fedavg(sizes, alpha=2.0, lr=1.0))
    # Nobody can be right for both halves, and a step from there does not help much.
    assert ours > accuracy(fedavg(sizes, lr=1.0)) + 0.3
    assert (
        ours > accuracy(fedavg_finetune(sizes, lr=1.0, tune_steps=1, tune_lr=2.0)) + 0.2
    )
    # Eight samples in six dimensions are few for somebody alone.
    assert ours > accuracy(local(lr=0.3)) + 0.1


@pytest.fixture(scope="module")
def table1():
    path = papers() / "fallah2020" / "items.py"
    spec = importlib.util.spec_from_file_location("fallah2020_items", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rows_of_table_1_have_the_settings_of_the_paper(table1):
    assert len(table1.ROWS) == 6
    for row, expected in table1.ROWS.items():
        study = table1.study_of(row)
        assert study.run.rounds == 1000 and study.run.batch_size == 40
        assert study.run.participation == 0.2 and len(study.run.seeds) >= 3
        assert study.model == {"name": "mlp", "hidden": [80, 60], "activation": "elu"}
        # Of `a` images of a class these are to train on.
        left = 1 - study.split["validation"] - study.split["test"]
        wanted = {"mnist": 196, "cifar10": 68}[study.data["name"]]
        assert round(left * study.split["a"]) == wanted
        assert study.split["clients"] == 50 and study.split["low"] == expected["low"]
        assert [entry.label for entry in study.algorithms] == list(table1.METHODS)
        for entry in study.algorithms:
            options = entry.options
            assert options["lr"] == 0.001 and options["steps"] == expected["tau"]
            assert options.get("alpha", options.get("tune_lr")) == expected["alpha"]


def recorded(table1, gaps) -> pd.DataFrame:
    """Three seeds of a row in which HF is above the others by these accuracies."""
    rows = []
    for seed, gap in enumerate(gaps):
        for method in table1.METHODS:
            score = 0.5 + 0.1 * seed + (gap if method == table1.HESSIAN_FREE else 0)
            rows.append({"algorithm": method, "seed": seed, "test_accuracy": score})
    return pd.DataFrame(rows)


def test_the_order_of_table_1_must_hold_in_all_rows_but_one(table1):
    good = recorded(table1, (0.02, 0.03, 0.04))
    # The mean is above 0, but not by its standard error.
    bad = recorded(table1, (-0.05, 0.01, 0.05))
    for failures, agrees in ((0, True), (1, True), (2, False)):
        tables = dict.fromkeys(table1.ROWS, good)
        tables |= dict.fromkeys(list(table1.ROWS)[:failures], bad)
        verdicts = [c.agrees for c in table1.judge(tables) if c.agrees is not None]
        assert verdicts == [agrees, agrees]
    two = {"mnist-tau10": good, "mnist-tau4": bad}
    assert [c.agrees for c in table1.judge(two)][-2:] == [True, True]
    two = {"mnist-tau10": bad, "mnist-tau4": bad}
    assert [c.agrees for c in table1.judge(two)][-2:] == [False, False]

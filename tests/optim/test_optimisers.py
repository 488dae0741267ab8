"""Claims about optimisers of local steps: they are those of torch, client by client."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms import fedavg, fedrep, local
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.engine import run_rounds
from coterie.engine.rounds import participants
from coterie.models import linear, mlp
from coterie.optim.steps import Descent, LocalDescent, sgd, step_size, velocity
from coterie.study.settings.optimisers import OPTIMISERS
from support.linear_groups import linear_clients

REAL = torch.float64
SIZES = [4, 9, 6, 5]
ROUNDS, STEPS, SHARE = 6, 3, 0.5


@pytest.fixture(scope="module")
def simulation():
    rng = torch.Generator().manual_seed(3)
    theta = torch.randn(4, 4, generator=rng, dtype=REAL)
    clients = linear_clients(theta, train=SIZES, noise=0.3)
    return Simulation(clients, linear((4,), 1), batch_size=0, dtype=REAL)


@pytest.fixture(scope="module")
def x():
    rng = torch.Generator().manual_seed(5)
    return torch.randn(1, 5, generator=rng, dtype=REAL).repeat(4, 1)


def loss(simulation, i, row):
    """The loss of client i for a linear model with the bias last."""
    index, mask = simulation.federation.train.rows(torch.tensor([i]))
    some = index[0][mask[0]]
    features = simulation.federation.features[some]
    targets = simulation.federation.targets[some].reshape(-1)
    return (features @ row[:4] + row[4] - targets).square().mean()


def by_loop(simulation, x, make, *, clip=None, rate=None, shared=False):
    """Models after rounds with an optimiser of torch for each client.

    A client that is absent keeps its optimiser as it is. With `shared`, models are
    averaged as FedAvg does.
    """
    rows = [row.clone().requires_grad_() for row in x]
    optimisers = [make([row]) for row in rows]
    t = 0
    for number in range(1, ROUNDS + 1):
        here = participants(4, SHARE, 0, number).nonzero()[:, 0].tolist()
        for i in here:
            for step in range(t, t + STEPS):
                optimisers[i].zero_grad()
                loss(simulation, i, rows[i]).backward()
                if clip is not None:
                    # torch's own clipping adds 1e-6 to the norm.
                    rows[i].grad *= min(1.0, clip / float(rows[i].grad.norm()))
                if rate is not None:
                    optimisers[i].param_groups[0]["lr"] = rate(step)
                optimisers[i].step()
        t += STEPS
        if shared:
            total = sum(SIZES[i] for i in here)
            mean = sum(SIZES[i] / total * rows[i].detach() for i in here)
            for row in rows:
                row.data = mean.clone()
    return torch.stack([row.detach() for row in rows])


def trained(simulation, x, method):
    last = list(run_rounds(method, simulation, x, rounds=ROUNDS, participation=SHARE))[
        -1
    ]
    return last.state.x


CASES = {
    "momentum": (
        {"name": "sgd", "lr": 0.05, "momentum": 0.8, "weight_decay": 0.1},
        lambda rows: torch.optim.SGD(rows, lr=0.05, momentum=0.8, weight_decay=0.1),
    ),
    "nesterov": (
        {
            "name": "sgd",
            "lr": 0.05,
            "momentum": 0.8,
            "nesterov": True,
            "weight_decay": 0.1,
        },
        lambda rows: torch.optim.SGD(
            rows, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1
        ),
    ),
    "adam": (
        {"name": "adam", "lr": 0.03, "beta2": 0.9, "weight_decay": 0.1},
        lambda rows: torch.optim.Adam(
            rows, lr=0.03, betas=(0.9, 0.9), weight_decay=0.1
        ),
    ),
    "adamw": (
        {"name": "adamw", "lr": 0.03, "beta1": 0.5, "epsilon": 1e-3},
        lambda rows: torch.optim.AdamW(rows, lr=0.03, betas=(0.5, 0.999), eps=1e-3),
    ),
}


def options(table):
    """The options of a method by name of its optimiser."""
    made = OPTIMISERS[table["name"]](**{k: v for k, v in table.items() if k != "name"})
    return made._asdict()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", [local, fedavg])
def test_steps_are_those_of_torch_although_clients_are_absent(
    simulation, x, case, method
):
    table, make = CASES[case]
    given = () if method is local else (torch.tensor(SIZES),)
    found = trained(simulation, x, method(*given, steps=STEPS, **options(table)))
    expected = by_loop(simulation, x, make, shared=method is fedavg)
    assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_clipping_is_that_of_torch(simulation, x, case):
    table, make = CASES[case]
    how = options({**table, "clip": 0.7})
    found = trained(simulation, x, local(steps=STEPS, **how))
    expected = by_loop(simulation, x, make, clip=0.7)
    assert_close(found, expected, rtol=0, atol=1e-9)
    without = trained(simulation, x, local(steps=STEPS, **options(table)))
    assert float((found - without).abs().max()) > 1e-3


def test_warm_up_grows_in_a_line_and_then_follows_the_schedule(simulation, x):
    how = options({"name": "adam", "lr": 0.03, "warmup": 5, "schedule": "inverse(4)"})
    found = trained(simulation, x, local(steps=STEPS, **how))
    expected = by_loop(
        simulation,
        x,
        lambda rows: torch.optim.Adam(rows, lr=0.03),
        rate=lambda t: 0.03 * min(1, (t + 1) / 5) * 4 / (4 + t),
    )
    assert_close(found, expected, rtol=0, atol=1e-9)


def test_one_step_sees_less_than_its_clip_as_it_is():
    """A gradient shorter than `clip` has the bits of a step without clipping."""
    x, g = torch.ones(2, 3), torch.full((2, 3), 0.25)

    class Slope:
        def grad(self, points):
            return g.clone()

        loss = losses = hvp = same_batch = whole = validation = grad
        evaluate = class_counts = stream = grad

    ends = []
    for lr in ("sgd(0.5, clip=100)", "sgd(0.5)"):
        rule = LocalDescent(lr)
        ends.append(sgd(Slope(), x, velocity(rule, x), rule=rule, steps=2, t=0)[0])
    assert torch.equal(*ends)


def test_a_step_of_adam_modifies_neither_models_nor_buffer(simulation, x):
    rule = LocalDescent("adam(0.1)")
    before, buffer = x.clone(), velocity(rule, x)
    simulation.at(1).each(sgd, x, buffer, rule=rule, steps=2, t=0)
    assert torch.equal(x, before) and not buffer.any()


def test_many_columns_are_computed_in_pieces_with_the_same_bits():
    """Rows of a large federation are computed apart, which changes nothing."""
    rng = torch.Generator().manual_seed(0)
    x, g = (torch.randn(9, 20_000, generator=rng) for _ in range(2))

    class Slope:
        def __init__(self, g):
            self.g = g

        def grad(self, points):
            return self.g.clone()

        loss = losses = hvp = same_batch = whole = validation = grad
        evaluate = class_counts = stream = grad

    rule = LocalDescent("adam(0.01)", weight_decay=0.1)
    buffer = velocity(rule, x)
    whole = sgd(Slope(g), x, buffer, rule=rule, steps=3, t=0)
    for i in range(9):
        some = slice(i, i + 1)
        alone = sgd(Slope(g[some]), x[some], buffer[some], rule=rule, steps=3, t=0)
        assert torch.equal(alone[0], whole[0][some])
        assert torch.equal(alone[1], whole[1][some])


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("columns", [100, 5_000])
def test_steps_of_adam_are_those_of_torch_and_change_nothing_given(columns, decoupled):
    """Small models take several passes over memory, large ones a single one."""
    rng = torch.Generator().manual_seed(0)
    x, best = (torch.randn(3, columns, generator=rng, dtype=REAL) for _ in range(2))

    class Slope:
        def grad(self, points):
            return points - best

        loss = losses = hvp = same_batch = whole = validation = grad
        evaluate = class_counts = stream = grad

    text = f"adam(0.01, decoupled={str(decoupled).lower()}, clip=3)"
    rule = LocalDescent(text, weight_decay=0.1)
    start, before = velocity(rule, x), x.clone()
    half = sgd(Slope(), x, start, rule=rule, steps=3, t=0)
    kept = [row.clone() for row in half]
    found, _ = sgd(Slope(), *half, rule=rule, steps=3, t=3)
    assert torch.equal(x, before) and not start.any()
    assert all(torch.equal(a, b) for a, b in zip(half, kept, strict=True))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    for i in range(3):
        row = torch.nn.Parameter(x[i].clone())
        optimiser = kind([row], lr=0.01, weight_decay=0.1)
        for _ in range(6):
            slope = row.detach() - best[i]
            row.grad = slope * min(1.0, 3 / float(slope.norm()))
            optimiser.step()
        assert_close(found[i], row.detach(), rtol=0, atol=1e-12)


def test_head_and_body_of_fedrep_have_their_own_adam():
    """A client alone: torch trains the head, then the body, with an Adam for each."""
    rng = torch.Generator().manual_seed(3)
    clients = linear_clients(
        torch.randn(1, 4, generator=rng, dtype=REAL), train=[7], noise=0.3
    )
    module = mlp((4,), 1, hidden=(3,)).to(REAL)
    simulation = Simulation(clients, module, batch_size=0, dtype=REAL)
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    head = torch.zeros(len(start), dtype=torch.bool)
    head[-4:] = True  # the last layer: three weights and a bias
    how = options({"name": "adam", "lr": 0.05, "clip": 0.5})
    method = fedrep(torch.tensor([7]), head, steps=2, head_steps=3, **how)
    rounds = run_rounds(method, simulation, start[None], rounds=3)
    state = list(rounds)[-1].state
    found = method.personal(state, simulation.at(3, purpose="use"))[0]
    *body, weight, bias = module.parameters()
    parts = {"head": [weight, bias], "body": body}
    optimisers = {k: torch.optim.Adam(p, lr=0.05) for k, p in parts.items()}
    data = simulation.federation
    for _ in range(3):
        for name, steps in (("head", 3), ("body", 2)):
            for _ in range(steps):
                module.zero_grad()
                error = module(data.features) - data.targets.reshape(-1, 1)
                index, mask = data.train.rows(torch.tensor([0]))
                error[index[0][mask[0]]].square().mean().backward()
                norm = sum(p.grad.square().sum() for p in parts[name]) ** 0.5
                for p in parts[name]:
                    p.grad *= min(1.0, 0.5 / float(norm))
                optimisers[name].step()
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ("adam(0.1, nesterov=true)", "`lr` adam has no option 'nesterov'"),
        ("sgd(0.1, beta2=0.9)", "`lr` sgd has no option 'beta2'"),
        ("sgd(0.1, clip=0)", "`lr clip` must be greater than 0"),
        ("sgd(0.1, clip=much)", "`lr clip` must be a number, got 'much'"),
        ("sgd(0.1, warmup=1.5)", r"`lr warmup` must be a whole number, got '1\.5'"),
        ("adam(0.1, beta1=1)", "`lr beta1` must be less than 1"),
        ("adam(0.1, fused=true)", "`lr` adam has no option 'fused'"),
        ("sgd(0.1, nesterov=yes)", "`lr nesterov` must be one of false, true"),
        ("sgd(clip=1)", r"`lr` sgd takes 1 number, got 'sgd\(clip=1\)'"),
    ],
)
def test_options_that_cannot_be_are_refused(lr, message):
    with pytest.raises(InputError, match=message):
        local(lr=lr)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (LocalDescent("adam(0.1)", 0.9), "`momentum` must be 0 with `lr` adam"),
        (LocalDescent("sgd(0.1, nesterov=true)"), "`nesterov` needs a `momentum`"),
    ],
)
def test_a_momentum_that_does_not_fit_is_refused(simulation, x, rule, message):
    with pytest.raises(InputError, match=message):
        simulation.at(1).each(sgd, x, velocity(rule, x), rule=rule, steps=1, t=0)


def test_adam_without_its_buffer_is_refused(simulation, x):
    rule = LocalDescent("adam(0.1)")
    with pytest.raises(InputError, match="needs a buffer with 2 D"):
        simulation.at(1).each(sgd, x, x[:, :0], rule=rule, steps=1, t=0)


def test_a_rule_without_texts_is_as_before():
    assert step_size(Descent(0.5, schedule="cosine(2)"), 1) == 0.25

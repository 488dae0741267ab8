"""Claims about methods with other steps, under every optimiser and in epochs.

SCAFFOLD, pFedMe and low-rank corrections are compared with loops over clients, with an
optimiser of torch for each client that takes part.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms import low_rank_corrections, pfedme, scaffold
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.conformance.divided import run_divided
from coterie.engine import run_rounds
from coterie.engine.rounds import participants
from coterie.models import linear
from support.linear_groups import linear_clients
from support.plain_clients import draws

REAL = torch.float64
SIZES = torch.tensor([3, 11, 6, 4, 25])
N, BATCH, ROUNDS, SHARE = 5, 4, 3, 0.6
NEAR = {"rtol": 0.0, "atol": 1e-9}
P = SIZES.double() / SIZES.sum()


@pytest.fixture(scope="module")
def federation():
    rng = torch.Generator().manual_seed(3)
    theta = torch.randn(N, 4, generator=rng, dtype=REAL)
    return linear_clients(theta, train=SIZES.tolist(), noise=0.3)


@pytest.fixture(scope="module")
def x():
    rng = torch.Generator().manual_seed(5)
    return torch.randn(1, 5, generator=rng, dtype=REAL).repeat(N, 1)


def clients_of(federation, *, epochs, **more):
    module = linear((4,), 1)
    made = Simulation(federation, module, batch_size=BATCH, dtype=REAL, **more)
    return made.in_epochs() if epochs else made


def last(method, federation, x, *, epochs, **more):
    simulation = clients_of(federation, epochs=epochs, **more)
    how = {"rounds": ROUNDS, "participation": SHARE}
    *_, end = run_rounds(method, simulation, x, **how)
    return end.state


def here_in(t):
    return participants(N, SHARE, 0, t).nonzero()[:, 0].tolist()


def minibatches(federation, i, t, first, count, epochs):
    """The samples of steps, or of epochs, number `first` on of a program."""
    call = seeds.key(0, "step", t, "each", 0)
    for number in range(first, first + count):
        if not epochs:
            yield draws(federation, i, BATCH, seeds.key(call, number))
            continue
        index, mask = federation.train.rows(torch.tensor([i]))
        samples = index[0][mask[0]]
        key = torch.tensor([[seeds.key(call, number)]])
        bits = seeds.bits(key, federation.clients[i : i + 1], len(samples))[0, 0]
        yield from samples[bits.argsort()].split(BATCH)


def loss(federation, row, index):
    features = federation.features[index]
    targets = federation.targets[index].reshape(-1)
    return (features @ row[:4] + row[4] - targets).square().mean()


def weighted(here, rows):
    return sum(P[i] * rows[i] for i in here) / sum(P[i] for i in here)


RULES = {
    "adam": (
        {"lr": "adam(0.03, decoupled=false)", "weight_decay": 0.1},
        lambda rows: torch.optim.Adam(rows, lr=0.03, weight_decay=0.1),
    ),
    "momentum": (
        {"lr": "sgd(0.03, nesterov=true)", "momentum": 0.8},
        lambda rows: torch.optim.SGD(rows, lr=0.03, momentum=0.8, nesterov=True),
    ),
    "text": ({"lr": "sgd(0.03)"}, lambda rows: torch.optim.SGD(rows, lr=0.03)),
}


@pytest.mark.parametrize("epochs", [False, True], ids=["steps", "epochs"])
@pytest.mark.parametrize("case", RULES)
def test_scaffold_gives_corrected_gradients_to_any_optimiser(
    federation, x, case, epochs
):
    options, make = RULES[case]
    method = scaffold(SIZES, steps=2, global_lr=0.8, **options)
    state = last(method, federation, x, epochs=epochs)
    w, c, c_i = x[0].clone(), torch.zeros(5).double(), torch.zeros(N, 5).double()
    rows = [x[0].clone().requires_grad_() for _ in range(N)]
    optimisers = [make([row]) for row in rows]
    for t in range(1, ROUNDS + 1):
        change = {}
        for i in here_in(t):
            rows[i].data, seen = w.clone(), []
            for index in minibatches(federation, i, t, 0, 2, epochs):
                optimisers[i].zero_grad()
                loss(federation, rows[i], index).backward()
                seen.append(rows[i].grad.clone())
                rows[i].grad += c - c_i[i]
                optimisers[i].step()
            change[i] = torch.stack(seen).mean(0) - c_i[i]
        for i in here_in(t):
            c_i[i] = c_i[i] + change[i]
            c = c + P[i] * change[i]
        mean = weighted(here_in(t), [row.detach() for row in rows])
        w = w + 0.8 * (mean - w)
    assert_close(state.w, w.expand(N, -1), **NEAR)
    assert_close(state.c, c.expand(N, -1), **NEAR)
    assert_close(state.c_i, c_i, **NEAR)


def test_control_variates_are_the_same_whether_clients_send_them_or_not(federation, x):
    """A text of plain steps sends twice as much, and gives the same models."""
    ends, sent = [], []
    for lr in (0.05, "sgd(0.05)"):
        simulation = clients_of(federation, epochs=False)
        how = {"rounds": ROUNDS, "participation": SHARE}
        method = scaffold(SIZES, lr=lr, steps=3)
        *_, end = run_rounds(method, simulation, x, **how)
        ends.append(end.state)
        sent.append(end.traffic)
        assert method.releases.average == 1 + isinstance(lr, str)
    for name in ("w", "c", "c_i"):
        assert_close(getattr(ends[0], name), getattr(ends[1], name), **NEAR)
    assert sent[1].server == 2 * sent[0].server


def test_scaffold_in_epochs_needs_clients_that_send_their_control_variates(
    federation, x
):
    with pytest.raises(InputError, match=r"an `lr` as a text, such as .* got 0\.1"):
        last(scaffold(SIZES), federation, x, epochs=True)


INNER = {
    "plain": ({"inner_lr": 0.03}, lambda rows: torch.optim.SGD(rows, lr=0.03)),
    "adamw": (
        {"inner_lr": "adam(0.03, clip=0.9)", "weight_decay": 0.1},
        lambda rows: torch.optim.AdamW(rows, lr=0.03, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("epochs", [False, True], ids=["steps", "epochs"])
@pytest.mark.parametrize("case", INNER)
def test_inner_steps_of_pfedme_are_those_of_any_optimiser(federation, x, case, epochs):
    """Each local round has its own minibatch and an optimiser that begins anew."""
    options, make = INNER[case]
    method = pfedme(
        SIZES,
        lr=0.4,
        momentum=0.5,
        schedule="step(2, 0.5)",
        steps=2,
        inner_steps=3,
        lam=1.5,
        weighting="samples",
        **options,
    )
    state = last(method, federation, x, epochs=epochs)
    w, theta = x[0].clone(), x.clone()
    v, copies = torch.zeros(N, 5).double(), x.clone()
    for t in range(1, ROUNDS + 1):
        for i in here_in(t):
            copies[i] = w
            batches = [*minibatches(federation, i, t, 0, 2, epochs)]
            for r, index in enumerate(batches):
                point = copies[i].clone().requires_grad_()
                inner = make([point])
                for _ in range(3):
                    inner.zero_grad()
                    near = (point - copies[i]).square().sum()
                    (loss(federation, point, index) + 1.5 / 2 * near).backward()
                    if case == "adamw":
                        point.grad *= min(1.0, 0.9 / float(point.grad.norm()))
                    inner.step()
                theta[i] = point.detach()
                v[i] = 0.5 * v[i] + 1.5 * (copies[i] - theta[i])
                step = (t - 1) * len(batches) + r  # as often as it has minibatches
                copies[i] = copies[i] - 0.4 * 0.5 ** (step // 2) * v[i]
        w = weighted(here_in(t), copies)
    assert_close(state.w, w.expand(N, -1), **NEAR)
    assert_close(state.theta, theta, **NEAR)


@pytest.mark.parametrize("epochs", [False, True], ids=["steps", "epochs"])
@pytest.mark.parametrize("case", ["adam", "momentum"])
def test_corrections_of_low_rank_take_the_steps_of_any_optimiser(
    federation, x, case, epochs
):
    options, make = RULES[case]
    layers = torch.tensor([[0, 1, 4]])
    method = low_rank_corrections(
        SIZES, layers, rank=1, steps=1, own_steps=2, **options
    )
    state = last(method, federation, x, epochs=epochs)
    w = x[0].clone()
    start = state.start  # A (1, 1) is 0, and B (1, 4) is noise
    assert start[0] == 0 and (start[1:] != 0).all()
    factors = [start.clone().requires_grad_() for _ in range(N)]
    rows = [x[0].clone().requires_grad_() for _ in range(N)]
    makers = [(make([a]), make([b])) for a, b in zip(factors, rows, strict=True)]

    def corrected(row, factor):
        return torch.cat([row[:4] + factor[0] * factor[1:], row[4:]])

    for t in range(1, ROUNDS + 1):
        for i in here_in(t):
            rows[i].data = w.clone()
            for which, first, count in ((0, 0, 2), (1, 2, 1)):
                for index in minibatches(federation, i, t, first, count, epochs):
                    makers[i][which].zero_grad()
                    loss(federation, corrected(rows[i], factors[i]), index).backward()
                    makers[i][which].step()
        w = weighted(here_in(t), [row.detach() for row in rows])
    assert_close(state.w, w.expand(N, -1), **NEAR)
    assert_close(state.factors, torch.stack([f.detach() for f in factors]), **NEAR)


METHODS = {
    "scaffold": lambda: scaffold(SIZES, lr="adam(0.03, clip=0.5)", steps=2),
    "pfedme": lambda: pfedme(SIZES, inner_lr="adam(0.03)", momentum=0.5, steps=2),
    "low rank": lambda: low_rank_corrections(
        SIZES, torch.tensor([[0, 1, 4]]), lr="adam(0.03, warmup=3)", steps=2
    ),
}


@pytest.mark.parametrize("epochs", [False, True], ids=["steps", "epochs"])
@pytest.mark.parametrize("name", METHODS)
def test_dividing_changes_nothing_and_going_on_is_not_stopping(
    federation, x, name, epochs
):
    method = METHODS[name]()
    whole = last(method, federation, x, epochs=epochs)

    def run(group):
        cuts = torch.arange(N).tensor_split(2)[group.rank]
        mine = federation.select(cuts)
        return last(method, mine, x[cuts], epochs=epochs, group=group)

    parts = run_divided(run, 2)
    own = {"scaffold": "c_i", "pfedme": "theta", "low rank": "factors"}[name]
    for field in ("w", own):
        found = torch.cat([getattr(part, field) for part in parts])
        assert_close(found, getattr(whole, field), rtol=0, atol=1e-12)

    simulation = clients_of(federation, epochs=epochs)
    how = {"rounds": ROUNDS, "participation": SHARE}
    first = next(iter(run_rounds(method, simulation, x, **how)))
    rest = run_rounds(method, simulation, x, start=(1, first.state), **how)
    *_, end = rest
    for one, other in zip(end.state, whole, strict=True):
        same = torch.equal(one, other) if isinstance(one, torch.Tensor) else True
        assert same


def test_an_epoch_has_a_gradient_for_every_sample(federation, x):
    """A local round of pFedMe uses its minibatch `inner_steps` times."""
    made = {
        1: scaffold(SIZES, lr="sgd(0.03)"),
        3: pfedme(SIZES, inner_steps=3, inner_lr=0.03),
        4: low_rank_corrections(SIZES, torch.tensor([[0, 1, 4]]), own_steps=3, lr=0.01),
    }
    for times, method in made.items():
        simulation = clients_of(federation, epochs=True)
        *_, r = run_rounds(method, simulation, x, rounds=2, participation=SHARE)
        assert torch.equal(r.gradients, times * SIZES.double() * r.active)

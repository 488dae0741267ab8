"""Claims about programs with losses of their own, outputs, features and labels."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.checks import InputError
from coterie.clients.groups import block
from coterie.clients.simulation import Simulation
from coterie.conformance.cases import ACTIVE
from coterie.conformance.divided import run_divided
from coterie.conformance.federations import small_federation
from coterie.conformance.suite import check_algorithm
from coterie.data.federation import Table, federate
from coterie.types import NeedsClasses
from support.documented import modules_of
from support.plain_clients import EXACT, draws, mine
from support.simulated import REAL, module, simulate, simulated

PAGE = modules_of("extending_losses.md")
LR, STEPS, ROUNDS = 0.3, 2, 3


@pytest.fixture
def federation():
    """Six clients with three classes."""
    return small_federation()


# Loops over clients, with an nn.Module and torch's own autograd.


def seen(federation, row, index):
    """Outputs, features and labels of these samples at a model."""
    twin = models.with_row(module(federation), row)
    values = {name: part.requires_grad_() for name, part in twin.named_parameters()}
    h = twin.body(federation.features[index])
    return twin.head(h), h, federation.targets[index], [*values.values()]


def slope(loss, parameters):
    found = torch.autograd.grad(loss, parameters)
    return torch.cat([g.flatten() for g in found])


def batch_of(simulation, client, t, question):
    key = seeds.key(simulation.at(t).key("each", 0), question)
    return draws(simulation.federation, client, simulation.batch_size, key)


def weighted_mean(rows, shares):
    return (shares[:, None] * rows).sum(0) / shares.sum()


def moon_by_loop(simulation, x, who, *, mu, tau):
    federation = simulation.federation
    sizes = federation.train.size.double()
    x, w = x.clone(), weighted_mean(x, sizes)
    for t in range(1, ROUNDS + 1):
        for i in who:
            y = w.clone()
            for s in range(STEPS):
                index = batch_of(simulation, i, t, s)
                z_w = seen(federation, w, index)[1].detach()
                z_old = seen(federation, x[i], index)[1].detach()
                outputs, z, labels, parameters = seen(federation, y, index)
                near = (F.cosine_similarity(z, z_w) / tau).exp()
                far = (F.cosine_similarity(z, z_old) / tau).exp()
                contrast = -(near / (near + far)).log().mean()
                loss = F.cross_entropy(outputs, labels) + mu * contrast
                y = y - LR * slope(loss, parameters)
            x[i] = y
        w = weighted_mean(x[who], sizes[who])
    return w.expand_as(x)


def fedntd_by_loop(simulation, x, who, *, beta, tau):
    federation = simulation.federation
    sizes = federation.train.size.double()
    w = weighted_mean(x, sizes)
    for t in range(1, ROUNDS + 1):
        found = []
        for i in who:
            y = w.clone()
            for s in range(STEPS):
                index = batch_of(simulation, i, t, s)
                teacher = seen(federation, w, index)[0].detach()
                outputs, _, labels, parameters = seen(federation, y, index)
                loss = F.cross_entropy(outputs, labels)
                for a, b, label in zip(outputs, teacher, labels, strict=True):
                    rest = torch.arange(len(a)) != label
                    ours = (a[rest] / tau).softmax(0)
                    theirs = (b[rest] / tau).softmax(0)
                    kl = (theirs * (theirs / ours).log()).sum()
                    loss = loss + beta * tau**2 * kl / len(labels)
                y = y - LR * slope(loss, parameters)
            found.append(y)
        w = weighted_mean(torch.stack(found), sizes[who])
    return w.expand_as(x)


def fedproto_by_loop(simulation, x, who, *, lam):
    federation, x = simulation.federation, x.clone()
    means: dict[int, torch.Tensor] = {}
    for t in range(1, ROUNDS + 1):
        parts: dict[int, list[torch.Tensor]] = {}
        for i in who:
            for s in range(STEPS):
                index = batch_of(simulation, i, t, s)
                outputs, z, labels, parameters = seen(federation, x[i], index)
                loss = F.cross_entropy(outputs, labels)
                for h, label in zip(z, labels.tolist(), strict=True):
                    if label in means:
                        away = (h - means[label]).square().mean()
                        loss = loss + lam * away / len(labels)
                x[i] = x[i] - LR * slope(loss, parameters)
            _, z, labels, _ = seen(federation, x[i], mine(federation, i))
            for h, label in zip(z.detach(), labels.tolist(), strict=True):
                parts.setdefault(label, []).append(h)
        means = {label: torch.stack(rows).mean(0) for label, rows in parts.items()}
    return x


def trained(name, simulation, x, active, **options):
    federation, factory = simulation.federation, getattr(PAGE[name], name)
    sizes = () if name == "fedproto" else (federation.train.size.double(),)
    algorithm = factory(*sizes, lr=LR, steps=STEPS, **options)
    state = algorithm.init(x, simulation.at(0, purpose="init"))
    for t in range(1, ROUNDS + 1):
        state, _ = algorithm.step(state, simulation.at(t, active), seeds.generator(t))
    return algorithm.personal(state, simulation.at(ROUNDS, purpose="use"))


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize(
    ("name", "loop", "options"),
    [
        ("moon", moon_by_loop, {"mu": 2.0, "tau": 0.5}),
        ("fedproto", fedproto_by_loop, {"lam": 1.5}),
        ("fedntd", fedntd_by_loop, {"beta": 0.7, "tau": 2.0}),
    ],
)
def test_the_methods_of_the_page_equal_a_loop_over_clients(
    federation, name, loop, options, active
):
    simulation, x = simulated(federation, batch_size=4)
    who = range(len(x)) if active is None else active.nonzero()[:, 0].tolist()
    expected = loop(simulation, x, [*who], **options)
    found = trained(name, simulation, x, active, **options)
    assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("name", ["moon", "fedproto", "fedntd"])
def test_the_methods_of_the_page_pass_every_check(name):
    found = check_algorithm(getattr(PAGE[name], name))
    assert not [each for each in found if each.outcome == "failed"]
    checked = {each.check for each in found if each.outcome == "passed"}
    assert {"divided", "client_by_client", "inactive_data", "releases"} <= checked


# Questions.


def pull(at, w, *, lam):
    return lam / 2 * (at.x - w).square().sum()


def pulled_loss(at, w, *, lam):
    return at.losses + pull(at, w, lam=lam)


def near_rows(at, rows):
    """A number for each sample, with a row for each of them."""
    return (at.outputs - rows).square().sum(1)


def terms(clients, x, w, apart):
    batch = clients.same_batch()
    apart = batch.grad(x, batch.evaluate(w).outputs, loss=near_rows)
    return batch.grad(x, w, loss=pulled_loss, lam=0.5), batch.grad(x), apart


def features_of(at):
    return at.features.sum(1)


def words() -> Table:
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, (24, 3), generator=rng)
    return Table("words", ids, ids.sum(1) % 3, "classification", 3)


class Reader(nn.Module):
    """Embeddings, which take another path through kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Embedding(5, 4, padding_idx=0)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.look(ids).mean(1))


def images() -> Table:
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randn(24, 1, 5, 5, generator=rng, dtype=REAL)
    return Table("images", pixels, torch.arange(24) % 3, "classification", 3)


def convolving() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(18, 3)))


def of_three(table, make, **settings):
    owner, role = torch.arange(24) % 3, torch.zeros(24, dtype=torch.long)
    role[:6], role[6:12] = 1, 2
    federation = federate(table, owner, role)
    built = models.build(make, 0, REAL)
    simulation = Simulation(federation, built, dtype=REAL, batch_size=4, **settings)
    rng = torch.Generator().manual_seed(1)
    size = simulation.kernel.parameters
    return simulation, torch.randn(3, size, generator=rng, dtype=REAL)


KINDS = [
    pytest.param(words, Reader, id="embeddings"),
    pytest.param(images, convolving, id="convolutions"),
]


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize(("table", "make"), KINDS)
def test_terms_of_a_loss_add_up_for_every_kind_of_model(table, make, loop):
    simulation, x = of_three(table(), make, loop=loop)
    w = x.flip(0)
    both, plain, _ = simulation.at(1).each(terms, x, w, x)
    assert_close(both, plain + 0.5 * (x - w), **EXACT)


@pytest.mark.parametrize(("table", "make"), KINDS)
def test_a_loss_with_a_row_for_each_sample_is_differentiated_as_by_hand(table, make):
    simulation, x = of_three(table(), make)
    federation, w = simulation.federation, x.flip(0)
    apart = simulation.at(1).each(terms, x, w, x)[2]
    for i in range(3):
        features = federation.features[batch_of(simulation, i, 1, 0)]
        twin = models.with_row(simulation.kernel.module, x[i])
        other = models.with_row(simulation.kernel.module, w[i])
        loss = (twin(features) - other(features).detach()).square().sum(1).mean()
        assert_close(apart[i], slope(loss, [*twin.parameters()]), **EXACT)


def test_rows_that_run_alone_get_the_same_gradients():
    """Convolutions with many samples run row after row on the CPU."""
    simulation, x = of_three(images(), convolving)
    at_once = simulation.at(1).each(terms, x, x.flip(0), x)
    simulation.kernel._by_row = True
    alone = simulation.at(1).each(terms, x, x.flip(0), x)
    for one, other in zip(alone, at_once, strict=True):
        assert_close(one, other, **EXACT)


def counted(clients, counts, sums, x):
    at = clients.whole().evaluate(x)
    inside = at.weight > 0
    used = torch.stack([inside.sum(1).to(x), at.weight.sum(1)], 1)
    means = (at.losses * at.weight).sum(1), at.outputs.sum((1, 2))
    means = (*means, at.features.sum((1, 2)), at.labels.sum(1).to(x))
    return clients.class_counts(), torch.cat([used, torch.stack(means, 1)], 1)


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_evaluations_and_class_counts_are_those_of_a_plain_model(federation, active):
    simulation, x = simulated(federation)
    counts, sums = -torch.ones(6, 3, dtype=REAL), -torch.ones(6, 6, dtype=REAL)
    counts, sums = simulation.at(2, active).each(counted, counts, sums, x)
    for i in range(6):
        if active is not None and not active[i]:
            assert bool((counts[i] == -1).all()) and bool((sums[i] == -1).all())
            continue
        index = mine(federation, i)
        outputs, z, labels, _ = seen(federation, x[i], index)
        assert counts[i].tolist() == labels.bincount(minlength=3).tolist()
        loss = F.cross_entropy(outputs, labels)
        found = loss, outputs.sum(), z.sum(), labels.sum()
        wanted = [len(index), 1.0, *(float(each.detach()) for each in found)]
        assert_close(sums[i], torch.tensor(wanted, dtype=REAL), **EXACT)


def test_a_site_evaluates_as_in_a_simulation(federation):
    simulation, x = simulated(federation)
    shape = torch.zeros(6, 3, dtype=REAL), torch.zeros(6, 6, dtype=REAL)
    together = simulation.at(2).each(counted, *shape, x)
    for k in range(6):
        site = simulate(federation.only(k)).at(2)
        alone = site.each(counted, shape[0][:1], shape[1][:1], x[k, None])
        for one, many in zip(alone, together, strict=True):
            assert_close(one[0], many[k], **EXACT)


def test_nobody_who_takes_part_here_is_no_obstacle(federation):
    everybody, x = simulated(federation)
    counts, sums = torch.zeros(6, 3, dtype=REAL), torch.zeros(6, 6, dtype=REAL)
    expected = everybody.at(2, ACTIVE).each(counted, counts, sums, x)
    steps = everybody.at(3, ACTIVE).each(terms, x, x.flip(0), x)

    def run(group):
        own = block(6, group)
        there = federation.select(torch.arange(6)[own])
        simulation = simulate(there, group=group)
        rows = counts[own], sums[own], x[own]
        found = simulation.at(2, ACTIVE).each(counted, *rows)
        more = x[own], x.flip(0)[own], x[own]
        return [*found, *simulation.at(3, ACTIVE).each(terms, *more)]

    for one, parts in zip(
        [*expected, *steps], zip(*run_divided(run, 3), strict=True), strict=True
    ):
        assert_close(torch.cat(parts), one, **EXACT)


def validated(clients, found, x):
    at = clients.validation().evaluate(x)
    return at.outputs.sum((1, 2))[:, None] + at.weight.sum(1)[:, None]


def test_a_client_without_validation_samples_sees_nobody_elses(federation):
    part = federation.validation
    size = part.size.clone()
    size[2] = 0
    simulation, x = simulated(replace(federation, validation=part._replace(size=size)))
    (found,) = simulation.at(1).each(validated, x[:, :1], x)
    assert found[2] == 0
    assert bool((found[[0, 1, 3, 4, 5]] != 0).all())


def test_the_widths_of_an_oracle_are_those_of_data_and_model(federation, regression):
    assert simulate(federation).at(1).widths == (3, 3)
    assert simulate(regression).at(1).widths == (0, 5)


# Refusals.


def all_outputs(at):
    return at.outputs


def nothing(at):
    return None


def with_loss(clients, x, *, which):
    losses = {
        "all_outputs": all_outputs,
        "nothing": nothing,
        "labels": lambda at: at.labels.to(at.x),
        "features": features_of,
    }
    return clients.grad(x, loss=losses[which])


@pytest.mark.parametrize(
    ("which", "got"), [("all_outputs", r"shape \(3, 3\)"), ("nothing", "None")]
)
def test_a_loss_of_another_shape_is_refused(federation, which, got):
    simulation, x = simulated(federation)
    rule = f"`{which}` must give one number for each of 3 samples, or one .* got {got}"
    with pytest.raises(InputError, match=rule):
        simulation.at(1).each(with_loss, x, which=which)


def two_results(clients, x):
    return x, x


@pytest.mark.parametrize("absent", [0, 1])
def test_a_program_with_more_results_than_rows_is_refused(federation, absent):
    simulation, x = simulated(federation)
    active = torch.arange(len(simulation)) >= absent
    rule = "`two_results` must give at most as many results as it gets rows, 1, got 2"
    with pytest.raises(InputError, match=rule):
        simulation.at(1, active).each(two_results, x)


def whole_numbers(at):
    return at.labels


def test_a_loss_without_a_gradient_is_refused(federation):
    simulation, x = simulated(federation)
    rule = "`whole_numbers` must be of floating-point numbers, got torch.int64"
    with pytest.raises(InputError, match=rule):
        simulation.at(1).each(lambda clients, x: clients.grad(x, loss=whole_numbers), x)


def test_labels_and_class_counts_need_classes(regression):
    simulation, x = simulated(regression)
    with pytest.raises(NeedsClasses, match="labels need targets that are classes"):
        simulation.at(1).each(with_loss, x, which="labels")
    with pytest.raises(NeedsClasses, match="class counts need targets that are cla"):
        simulation.at(1).each(lambda clients, x: clients.class_counts(), x)


def test_features_need_a_layer_called_head():
    simulation, x = of_three(
        images(), lambda: nn.Sequential(nn.Flatten(), nn.Linear(25, 3))
    )
    assert simulation.at(1).widths == (3, 0)
    with pytest.raises(InputError, match="features are what enters the layer `head`"):
        simulation.at(1).each(with_loss, x, which="features")


def test_rows_of_a_loss_must_be_rows_of_the_clients(federation):
    simulation, x = simulated(federation)

    def wrong(clients, x):
        return clients.grad(x, x[:1], loss=pulled_loss, lam=1.0)

    with pytest.raises(InputError, match=r"must have 6 rows.*got shape \(1, "):
        simulation.at(1).each(wrong, x)
    with pytest.raises(InputError, match="takes rows and options only with `loss`"):
        simulation.at(1).each(lambda clients, x: clients.grad(x, x), x)


@pytest.mark.parametrize(
    ("task", "outputs", "labels", "rule"),
    [
        ("classification", 3, [0, 1, 2, 3], "from 0 to 2, but sample 3 has 3"),
        ("classification", 3, [0, -1, 2, 1], "from 0 to 2, but sample 1 has -1"),
        ("binary", 1, [0, 1, 2, 1], "from 0 to 1, but sample 2 has 2"),
    ],
)
def test_a_label_outside_the_classes_is_refused(task, outputs, labels, rule):
    with pytest.raises(InputError, match=rule):
        Table("odd", torch.zeros(4, 2), torch.tensor(labels), task, outputs)


# Streams.


def noise(clients, first, second, third):
    stream = clients.stream("noise")
    again = clients.same_batch().stream("noise", 7)
    return stream.normal(4), stream.normal(4), again.uniform(4)


def test_streams_do_not_depend_on_who_else_takes_part(federation):
    zeros = torch.zeros(6, 4, dtype=REAL)
    simulation, _ = simulated(federation)
    everybody = simulation.at(3).each(noise, zeros, zeros, zeros)
    some = simulation.at(3, ACTIVE).each(noise, zeros, zeros, zeros)
    loop = simulate(federation, loop=True).at(3).each(noise, *[zeros] * 3)
    site = simulate(federation.only(4)).at(3).each(noise, *[zeros[:1]] * 3)
    for a, b, c, d in zip(everybody, some, loop, site, strict=True):
        assert torch.equal(a[ACTIVE], b[ACTIVE]) and not b[~ACTIVE].any()
        assert torch.equal(a, c) and torch.equal(a[4, None], d)
    every = torch.cat(everybody).flatten()
    assert len(every.unique()) == len(every)


def test_streams_change_with_round_call_and_seed(federation):
    zeros = torch.zeros(6, 4, dtype=REAL)

    def drawn(t, calls=1, seed=0):
        oracle = simulate(federation, seed=seed).at(t)
        return [oracle.each(noise, zeros, zeros, zeros)[0] for _ in range(calls)][-1]

    every = [drawn(3), drawn(4), drawn(3, calls=2), drawn(3, seed=1)]
    assert len(torch.stack(every).unique()) == 4 * 6 * 4
    assert torch.equal(drawn(3), every[0])


def test_a_task_in_time_draws_from_the_streams_of_its_round(federation):
    zeros = torch.zeros(6, 4, dtype=REAL)
    simulation, _ = simulated(federation)
    rounds = [1, 2, 3, 4, 5, 6]
    tasks = simulation.task_clients(torch.arange(6), rounds, verb="each")
    found = noise(tasks, zeros, zeros, zeros)
    for i, t in enumerate(rounds):
        in_rounds = simulation.at(t).each(noise, zeros, zeros, zeros)
        for task, one in zip(found, in_rounds, strict=True):
            assert torch.equal(task[i], one[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_streams_have_the_moments_of_their_laws(dtype):
    stream = seeds.Stream(3, torch.arange(4), dtype, "law")
    u, z, k = stream.uniform(50_000), stream.normal(50_001), stream.integers(6, 50_000)
    assert u.dtype == z.dtype == dtype and stream.normal().shape == (4,)
    assert 0 <= u.min() and u.max() < 1
    # Standard errors of 200,000 draws, times four and a half.
    assert_close(u.mean().item(), 0.5, atol=3e-3, rtol=0)
    assert_close(u.var().item(), 1 / 12, atol=1e-3, rtol=0)
    assert_close(z.mean().item(), 0.0, atol=1e-2, rtol=0)
    assert_close(z.var().item(), 1.0, atol=1.5e-2, rtol=0)
    assert_close(z.double().pow(4).mean().item(), 3.0, atol=0.1, rtol=0)
    shares = k.flatten().bincount() / k.numel()
    assert_close(shares, torch.full((6,), 1 / 6), atol=4e-3, rtol=0)

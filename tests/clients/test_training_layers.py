"""Claims about dropout, augmentation, batch statistics and mixed precision."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import coterie as co
from coterie import methods, models, seeds
from coterie.checks import InputError
from coterie.clients.groups import block
from coterie.clients.samples import Batch
from coterie.clients.simulation import Simulation
from coterie.conformance.cases import ACTIVE
from coterie.conformance.divided import run_divided
from coterie.conformance.federations import small_federation
from coterie.data.federation import Table, federate
from coterie.models.layers import Augment, NamedDropout
from coterie.privacy import PrivateSimulation
from support.plain_clients import EXACT, draws

REAL = torch.float64
WORD = 2**64 - 1
P, LR = 0.4, 0.1


def dropping() -> nn.Module:
    """A chain of plain layers, which are not vectorised."""
    return models.mlp((4,), 3, hidden=(5,), activation="tanh", dropout=P)


def convolving(norm: str = "none", dropout: float = 0.0, augment=()) -> nn.Module:
    options = {"width": 2, "norm": norm, "dropout": dropout, "augment": augment}
    return models.cnn((1, 10, 10), 3, **options)


def images(clients: int = 4):
    rng = torch.Generator().manual_seed(0)
    samples = 12 * clients
    pixels = torch.randn(samples, 1, 10, 10, generator=rng, dtype=REAL)
    table = Table("images", pixels, torch.arange(samples) % 3, "classification", 3)
    owner = torch.arange(samples) % clients
    role = torch.zeros(samples, dtype=torch.long)
    role[: 2 * clients], role[2 * clients : 4 * clients] = 1, 2
    return federate(table, owner, role)


def clients_of(federation, make, dtype=REAL, **settings):
    module = models.build(make, 0, dtype)
    given = {"batch_size": 4, "dtype": dtype, **settings}
    simulation = Simulation(federation, module, **given)
    rng = torch.Generator().manual_seed(1)
    size = simulation.kernel.parameters
    noise = torch.randn(len(federation), size, generator=rng, dtype=dtype)
    return simulation, models.ravel(module) + noise / 10


# Masks, from whole numbers of Python.


def split_mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def mask(key: int, layer: str, units: int) -> torch.Tensor:
    """Which units of a sample are left, times 1 / (1 - p)."""
    golden, place = 0x9E3779B97F4A7C15, seeds.key("layer", layer)
    found = []
    for unit in range(1, units + 1):
        word = split_mix((key + place + unit * golden) & WORD)
        found.append((word >> 33) >= round(P * 2**31))
    return torch.tensor(found, dtype=REAL) / (1 - P)


def gradient_with_masks(simulation, x, i, stream, layer="body.3"):
    federation = simulation.federation
    index = draws(federation, i, simulation.batch_size, stream)
    names = federation.clients[[i]]
    keys = seeds.bits(seeds.key(stream, "layers"), names, len(index))[0]
    masks = torch.stack([mask(key, layer, 5) for key in keys.tolist()])
    values = simulation.kernel.layout.unravel(x[i].clone().requires_grad_())
    (w, b, u, c) = leaves = [v.detach().requires_grad_() for v in values.values()]
    h = (federation.features[index] @ w.T + b).tanh() * masks
    loss = F.cross_entropy(h @ u.T + c, federation.targets[index])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])


class Vectorised(nn.Sequential):
    """The same layers, which kernels do not know as a chain."""


@pytest.mark.parametrize("kind", [nn.Sequential, Vectorised])
def test_masks_of_dropout_follow_from_the_names_of_their_stream(kind):
    def make():
        plain = models.mlp((4,), 3, hidden=(5,), activation="tanh", dropout=P)
        return kind(OrderedDict(plain.named_children()))

    simulation, x = clients_of(small_federation(), make)
    oracle = simulation.at(3)
    oracle.grads(x)
    found = oracle.grads(x)
    for i in range(6):
        stream = simulation.at(3).key("grads", 1)
        assert_close(found[i], gradient_with_masks(simulation, x, i, stream), **EXACT)


def test_a_layer_of_torch_gets_masks_of_named_streams():
    def make():
        body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Dropout(P))
        return nn.Sequential(OrderedDict(body=body, head=nn.Linear(5, 3)))

    simulation, x = clients_of(small_federation(), make)
    stream, found = simulation.at(3).key("grads", 0), simulation.at(3).grads(x)
    wanted = gradient_with_masks(simulation, x, 2, stream)
    assert_close(found[2], wanted, **EXACT)


def test_fedavg_with_dropout_is_a_loop_with_these_masks():
    """With partial participation, two local steps in each of two rounds."""
    federation = small_federation()
    simulation, x = clients_of(federation, dropping)
    sizes, here = federation.train.size.double(), ACTIVE.nonzero()[:, 0].tolist()
    method = methods.fedavg(sizes, lr=LR, steps=2)
    state = method.init(x, simulation.at(0, purpose="init"))
    w = x.mean(0)
    for t in (1, 2):
        state, _ = method.step(state, simulation.at(t, ACTIVE), seeds.generator(t))
        rows, call = w.repeat(len(x), 1), simulation.at(t).key("each", 0)
        for i in here:
            for s in range(2):
                stream = seeds.key(call, s)
                rows[i] -= LR * gradient_with_masks(simulation, rows, i, stream)
        w = (sizes[here, None] * rows[here]).sum(0) / sizes[here].sum()
    assert_close(state.x[0], w, **EXACT)


RANDOM = [
    pytest.param(small_federation, dropping, id="dropout"),
    pytest.param(
        images,
        lambda: convolving("batch", 0.3, ("crop(1)", "flip", "noise(0.1)")),
        id="everything",
    ),
]


def stepped(clients, x, whole):
    part = clients.whole()
    whole = whole - 0.1 * part.grad(whole) - 0.01 * part.hvp(whole, x)
    for _ in range(3):
        x = x - 0.1 * clients.grad(x)
    return x, whole


@pytest.mark.parametrize(("federation", "make"), RANDOM)
def test_a_client_draws_the_same_alone_among_others_and_in_debug_mode(federation, make):
    everybody = federation()
    simulation, x = clients_of(everybody, make)
    w = torch.full((len(x), len(x)), 1 / len(x), dtype=REAL)

    def answers(simulation, x, w=None):
        oracle = simulation.at(2)
        found = [oracle.grads(x), *oracle.each(stepped, x, x)]
        if w is not None:
            found += [oracle.blended(x, w), oracle.compare(x).cross]
        return found

    at_once = answers(simulation, x, w)
    again = answers(clients_of(everybody, make)[0], x, w)
    loop = answers(clients_of(everybody, make, loop=True)[0], x, w)
    site = answers(clients_of(everybody.only(1), make)[0], x[1:2])
    for one, same, other in zip(at_once, again, loop, strict=True):
        assert torch.equal(one, same)
        assert_close(one, other, **EXACT)
    for one, alone in zip(at_once, site, strict=False):
        assert_close(one[1:2], alone, **EXACT)


@pytest.mark.parametrize(("federation", "make"), RANDOM)
def test_blends_are_weighted_sums_of_the_contributors_own_gradients(federation, make):
    simulation, x = clients_of(federation(), make)
    n = len(x)
    w = torch.rand(n, n, generator=torch.Generator().manual_seed(2), dtype=REAL)
    found = simulation.at(2).blended(x, w)
    for i in range(n):
        reader = x[i].expand(n, -1)
        only = torch.eye(n, dtype=REAL)[i]  # one contributor at a time
        wanted = torch.zeros_like(x[i])
        for k in range(n):
            pair = torch.zeros(n, n, dtype=REAL)
            pair[i, k] = 1.0
            wanted += w[i, k] * simulation.at(2).blended(reader, pair)[i]
        assert only.sum() == 1
        assert_close(found[i], wanted, **EXACT)


@pytest.mark.parametrize(("federation", "make"), RANDOM)
def test_a_divided_run_draws_the_same(federation, make):
    everybody = federation()
    n = len(everybody)
    active = ACTIVE if n == 6 else torch.tensor([False, True, True, False])
    sizes = everybody.train.size.double()

    def trained(simulation, x):
        method = methods.fedavg(sizes, lr=0.1, steps=2)
        state = method.init(x, simulation.at(0, purpose="init"))
        for t in (1, 2):
            state, _ = method.step(state, simulation.at(t, active), seeds.generator(t))
        return method.personal(state, simulation.at(2, purpose="use"))

    simulation, x = clients_of(everybody, make)
    expected = trained(simulation, x)

    def run(group):
        own = block(n, group)
        part = everybody.select(torch.arange(n)[own])
        return trained(clients_of(part, make, group=group)[0], x[own])

    assert_close(torch.cat(run_divided(run, 2)), expected, **EXACT)


@pytest.mark.parametrize(("federation", "make"), RANDOM)
def test_nothing_is_random_where_models_are_used(federation, make):
    everybody = federation()
    simulation, x = clients_of(everybody, make)
    found = simulation.evaluate(x, "test")["loss"]
    module = models.build(make, 0, REAL)
    for i, row in enumerate(x):
        index, start, size = everybody.test
        mine = index[start[i] : start[i] + size[i]]
        outputs = models.with_row(module, row)(everybody.features[mine])
        loss = F.cross_entropy(outputs, everybody.targets[mine])
        assert_close(found[i], loss.detach(), **EXACT)


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    layer, channels = NamedDropout(0.3), NamedDropout(0.3, channels=True)
    layer.keys = channels.keys = seeds.bits(5, torch.arange(1), 200)[0]
    found = layer(torch.ones(200, 500, dtype=REAL))
    # Standard errors of 100,000 units, times five.
    assert_close((found == 0).double().mean().item(), 0.3, atol=8e-3, rtol=0)
    assert_close(found.mean().item(), 1.0, atol=1.1e-2, rtol=0)
    whole = channels(torch.ones(200, 50, 3, 3))
    assert torch.equal(whole, whole[..., :1, :1].expand_as(whole))
    assert_close((whole[..., 0, 0] == 0).double().mean().item(), 0.3, atol=3e-2, rtol=0)


# Augmentation.


def test_augmented_images_are_the_crops_and_mirror_images_of_their_own():
    x = torch.arange(1.0, 13.0).view(1, 1, 3, 4).repeat(400, 1, 1, 1)
    layer = Augment("crop(1)", "flip")
    layer.keys = seeds.bits(5, torch.arange(1), 400)[0]
    wide = F.pad(x[:1], (1, 1, 1, 1))
    parts = [wide[..., a : a + 3, b : b + 4] for a in range(3) for b in range(3)]
    every = [part.flatten().tolist() for p in parts for part in (p, p.flip(-1))]
    found = [image.flatten().tolist() for image in layer(x)]
    counts = [found.count(each) for each in every]
    assert sum(counts) == 400 and min(counts) >= 8  # 22 of each expected
    layer.keys = torch.empty(0, dtype=torch.long)
    assert layer(x) is x


def test_noise_has_its_deviation():
    layer = Augment("noise(0.5)")
    layer.keys = seeds.bits(5, torch.arange(1), 100)[0]
    found = layer(torch.ones(100, 1000, dtype=REAL))
    # Standard errors of 100,000 numbers, times five.
    assert_close(found.mean().item(), 1.0, atol=8e-3, rtol=0)
    assert_close(found.std().item(), 0.5, atol=6e-3, rtol=0)


# Batch statistics.


def plain_cnn() -> nn.Module:
    """The same network of torch's own layers, with momentum LR."""
    norms = nn.BatchNorm2d(2, momentum=LR), nn.BatchNorm2d(4, momentum=LR)
    body = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), norms[0], nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2, 4, 3), norms[1], nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4, 48), nn.ReLU()),
    )
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(48, 3))).double()


def values_of(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and running statistics in the order of a row."""
    found = []
    for layer in module.modules():
        found += layer.parameters(recurse=False)
        if isinstance(layer, nn.BatchNorm2d):
            found += [layer.running_mean, layer.running_var]
    return found


def load(module: nn.Module, row: torch.Tensor) -> None:
    values = values_of(module)
    parts = row.split([value.numel() for value in values])
    with torch.no_grad():
        for value, part in zip(values, parts, strict=True):
            value.copy_(part.view_as(value))


def trained_by_torch(simulation, row, i, t, steps):
    """SGD of torch, whose running statistics torch updates itself."""
    federation, module = simulation.federation, plain_cnn()
    load(module, row)
    rule = torch.optim.SGD(module.parameters(), lr=LR)
    call = seeds.key(simulation.seed, "step", t, "each", 0)
    for s in range(steps):
        index = draws(federation, i, simulation.batch_size, seeds.key(call, s))
        rule.zero_grad()
        outputs = module(federation.features[index])
        F.cross_entropy(outputs, federation.targets[index]).backward()
        rule.step()
    return torch.cat([value.detach().flatten() for value in values_of(module)])


@pytest.mark.parametrize("home", [None, ["norm*"], ["running_*"]])
def test_statistics_are_averaged_or_personal_as_a_loop_of_torch_says(home):
    """All averaged, all of the layer at home (FedBN), or statistics at home."""
    module = models.build(lambda: convolving("batch"), 0, REAL)
    own = None if home is None else models.columns(module, home)
    federation = images()
    simulation, x = clients_of(federation, lambda: convolving("batch"), home=own)
    sizes = federation.train.size.double()
    active = torch.tensor([True, False, True, True])
    method = methods.fedavg(sizes, lr=LR, steps=3)
    state = method.init(x, simulation.at(0, purpose="init"))
    kept = torch.zeros_like(x[0], dtype=torch.bool) if own is None else own
    mean = (sizes[:, None] * x).sum(0) / sizes.sum()
    rows = torch.where(kept, x, mean)
    for t in (1, 2):
        state, _ = method.step(state, simulation.at(t, active), seeds.generator(t))
        for i in active.nonzero()[:, 0].tolist():
            rows[i] = trained_by_torch(simulation, rows[i], i, t, 3)
        part = sizes[active]
        mean = (part[:, None] * rows[active]).sum(0) / part.sum()
        rows = torch.where(kept, rows, mean)
    found = method.personal(state, simulation.at(2, purpose="use"))
    assert_close(found, rows, **EXACT)


def test_frozen_statistics_stay_out_of_the_row_and_normalise_training():
    def pretrained():
        module = plain_cnn()
        load(
            module, torch.rand(len(torch.cat([v.flatten() for v in values_of(module)])))
        )
        return co.with_batch_statistics(module, frozen=True)

    federation = images()
    simulation, x = clients_of(federation, pretrained)
    module = models.build(pretrained, 0, REAL)
    statistics = 2 * (2 + 4)
    assert simulation.kernel.parameters == len(models.ravel(plain_cnn()))
    full = clients_of(federation, lambda: co.with_batch_statistics(plain_cnn()))[0]
    assert full.kernel.parameters == simulation.kernel.parameters + statistics
    index = draws(federation, 1, 4, simulation.at(1).key("grads", 0))
    twin = models.with_row(module, x[1])
    loss = F.cross_entropy(twin(federation.features[index]), federation.targets[index])
    g = torch.autograd.grad(loss, [*twin.parameters()])
    wanted = torch.cat([part.flatten() for part in g])
    assert_close(simulation.at(1).grads(x)[1], wanted, **EXACT)


def test_samples_without_weight_do_not_enter_the_statistics():
    simulation, x = clients_of(images(), lambda: convolving("batch"))
    index = torch.tensor([[0, 4, 8, 12], [1, 5, 9, 13]])
    weight = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]], dtype=REAL) / 3
    padded = simulation.kernel.grad(x[:2], Batch(index, weight))
    short = simulation.kernel.grad(x[:2], Batch(index[:, :3], weight[:, :3]))
    assert_close(padded, short, **EXACT)


# Mixed precision.


def test_mixed_precision_keeps_rows_in_single_precision_and_is_near_it():
    single = torch.float32
    full, x = clients_of(images(), lambda: convolving("batch"), dtype=single)
    mixed, _ = clients_of(
        images(), lambda: convolving("batch"), dtype=single, autocast=torch.bfloat16
    )
    a, b = full.at(1).grads(x), mixed.at(1).grads(x)
    assert b.dtype == single and not torch.equal(a, b)
    # bfloat16 has 8 bits, so that a product is off by 2^-8 of its terms.
    assert (a - b).norm() < 0.05 * a.norm()
    assert torch.equal(b, mixed.at(1).grads(x))
    loss = mixed.evaluate(x, "test")["loss"]
    assert loss.dtype == single
    assert_close(loss, full.evaluate(x, "test")["loss"], rtol=0.02, atol=0.02)


def test_mixed_precision_is_a_setting_of_the_run():
    tables = {
        "data": {"name": "digits"},
        "split": {"name": "iid", "clients": 2, "max_samples": 30},
        "model": {"name": "mlp", "hidden": [4], "dropout": 0.2},
        "run": {"rounds": 2},
        "algorithm": [{"name": "fedavg", "lr": 0.1}],
    }
    usual = co.study_of(tables)
    assert "mixed_precision" not in usual.tables()["run"]
    tables["run"] = {"rounds": 2, "mixed_precision": "bf16"}
    study = co.study_of(tables)
    assert study.tables()["run"]["mixed_precision"] == "bf16"
    found, full = (co.run_study(one).models("fedavg") for one in (study, usual))
    assert found.dtype == torch.float32 and not torch.equal(found, full)
    assert_close(found, full, rtol=0.1, atol=0.01)
    tables["run"]["dtype"] = "float64"
    with pytest.raises(InputError, match=r"needs rows of `run\.dtype` float32, got"):
        co.study_of(tables)
    tables["run"] = {"mixed_precision": "fp16"}
    with pytest.raises(InputError, match=r"`run\.mixed_precision` must be .*'fp16'"):
        co.study_of(tables)


def test_a_study_with_such_layers_can_be_loaded_without_its_data(tmp_path):
    tables = {
        "data": {"name": "digits"},
        "split": {"name": "iid", "clients": 2, "max_samples": 30},
        "model": {"name": "mlp", "hidden": [4], "dropout": 0.5},
        "run": {"rounds": 3},
        "algorithm": [{"name": "fedavg", "lr": 0.1}],
    }
    result = co.run_study(co.study_of(tables), runs=tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob("*/study.toml"))
    model = co.load(folder).model(0, "fedavg")
    wanted = models.ravel(model)
    assert_close(wanted, result.models("fedavg")[0])


# Refusals.


def test_dropout_of_one_is_refused():
    with pytest.raises(InputError, match=r"`dropout` must be less than 1, got 1"):
        models.mlp((4,), 3, dropout=1.0)
    with pytest.raises(InputError, match=r"drops everything in 0: p must be below 1"):
        models.build(lambda: nn.Sequential(nn.Dropout(1.0), nn.Linear(2, 2)), seed=0)


def test_batch_statistics_of_one_sample_are_refused():
    def make():
        return convolving("batch")

    with pytest.raises(InputError, match=r"`batch_size` must be at least 2 .*, got 1"):
        clients_of(images(), make, batch_size=1)
    federation = images()
    size = federation.train.size.clone()
    size[2] = 1
    few = federation.train._replace(size=size)
    object.__setattr__(federation, "train", few)
    for batch_size in (0, 4):  # minibatches would repeat the same sample
        with pytest.raises(
            InputError, match=r"two training samples .* but client 2 has 1"
        ):
            clients_of(federation, make, batch_size=batch_size)
    simulation, x = clients_of(images(), make)
    one = Batch(torch.tensor([[0]]), torch.ones(1, 1, dtype=REAL))
    with pytest.raises(
        InputError, match="needs at least two samples in a batch, got 1"
    ):
        simulation.kernel.grad(x[:1], one)


@pytest.mark.parametrize(
    ("ways", "rule"),
    [
        (["turn"], "`augment` must be one of crop, flip, noise, got 'turn'"),
        (["crop"], "`augment` crop takes 1 number, got 'crop'"),
        (["crop(10)"], "`augment` crop must be smaller than images, 10, got crop(10)"),
        (["crop(1.5)"], "`augment` crop takes a whole number, got 'crop(1.5)'"),
        (["noise(0)"], "`augment noise` must be greater than 0, got 0"),
        ("flip", "`augment` must be a list of texts, got 'flip'"),
    ],
)
def test_bad_augmentation_is_refused(ways, rule):
    with pytest.raises(InputError) as refusal:
        convolving(augment=ways)
    assert rule in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "settings", "rule"),
    [
        (dropping, {}, "batch statistics, dropout or augmentation"),
        (
            lambda: models.linear((4,), 3),
            {"dtype": torch.float32, "autocast": torch.bfloat16},
            "cannot be used with mixed precision",
        ),
    ],
)
def test_hiding_samples_needs_models_without_such_layers(make, settings, rule):
    simulation, _ = clients_of(small_federation(), make, **settings)
    with pytest.raises(InputError, match=rule):
        PrivateSimulation(simulation, clip=1.0, noise=1.0)

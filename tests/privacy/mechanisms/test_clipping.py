"""Gradients clipped sample by sample, against an independent loop over samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from coterie import models
from coterie.checks import InputError
from coterie.clients import Batch, Kernel
from coterie.models import OBJECTIVES
from coterie.privacy.mechanisms.per_sample.clipping import ClippedKernel
from coterie.privacy.mechanisms.per_sample.layers import (
    factors,
    keeps_samples_apart,
    product,
)
from coterie.privacy.mechanisms.per_sample.tapes import (
    StackedRecorder,
    Tape,
    VectorisedRecorder,
)
from support.simulated import simulated

REAL = torch.float64
# Sums of at most some hundred products in double precision, in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def sequences(places: int, inputs: int, hidden: int) -> nn.Module:
    """A linear layer at every place of a sequence, then one on the whole."""
    head = nn.Linear(places * hidden, 3)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Flatten(), head)


class Tied(nn.Module):
    """One layer used twice, which a tape of single uses would get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, h: Tensor) -> Tensor:
        return self.head(self.inner(self.inner(h).tanh()))


class Borrowed(Tied):
    """A layer whose weights are also used behind its back."""

    def forward(self, h: Tensor) -> Tensor:
        return self.head(self.inner(h).tanh() @ self.inner.weight)


class Own(nn.Module):
    """A module with a `forward` of its own, which does no harm."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.head(h)
        return out


class Centred(Own):
    """Samples less the mean of all."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) - h.mean()


class Attending(Own):
    """Samples that look at each other."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward((h @ h.T).softmax(1) @ h)


class Threes(Own):
    """Samples that are compared where there are three of them."""

    def forward(self, h: Tensor) -> Tensor:
        out = super().forward(h)
        return out - out.mean(0) if len(h) == 3 else out


class Many(Own):
    """Samples that are compared in large batches only."""

    def forward(self, h: Tensor) -> Tensor:
        out = super().forward(h)
        return out - 9 * out.mean(0) if len(h) > 20 else out


class Signalled(Own):
    """Samples that take over what a loud one says."""

    def forward(self, h: Tensor) -> Tensor:
        loud = (h > 20).any(1, keepdim=True)
        return super().forward(h) + 9 * (loud * h).sum(0)[:3]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3))


MODELS = {
    # Name: module, shape of a sample, whether lengths come from the tape.
    "linear": (lambda: models.linear((4,), 3), (4,), True),
    "mlp": (lambda: models.mlp((4,), 3, hidden=(5, 6), activation="tanh"), (4,), True),
    "no bias": (lambda: nn.Linear(4, 3, bias=False), (4,), True),
    "cnn": (lambda: models.cnn((1, 10, 10), 3, width=2), (1, 10, 10), True),
    "strided": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1, dilation=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(27, 3),
        ),
        (2, 7, 7),
        True,
    ),
    "long sequences": (lambda: sequences(6, 2, 3), (6, 2), True),
    "short sequences": (lambda: sequences(2, 5, 4), (2, 5), True),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 3)
        ),
        (2, 4, 4),
        False,
    ),
    "normalised": (normalised, (4,), False),
    "own": (Own, (4,), False),
    "many": (Many, (4,), False),
    "signalled": (Signalled, (4,), False),
    "tied": (Tied, (4,), False),
    "borrowed": (Borrowed, (4,), False),
    "in place": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        (4,),
        True,
    ),
}


def problem(name: str, clip: float):
    make, shape, by_layer = MODELS[name]
    rng = torch.Generator().manual_seed(0)
    module = models.build(make, 0, REAL)
    features = torch.randn(12, *shape, generator=rng, dtype=REAL)
    targets = torch.randint(3, (12,), generator=rng)
    kernel = Kernel(module, OBJECTIVES["classification"], features, targets)
    clipped = ClippedKernel(kernel, clip)
    assert (clipped._by_layer is not None) is by_layer
    points = torch.randn(2, kernel.parameters, generator=rng, dtype=REAL) / 2
    index = torch.randint(12, (2, 5), generator=rng)
    weight = torch.rand(2, 5, generator=rng, dtype=REAL)
    weight[1, 3] = 0
    return module, kernel, clipped, points, Batch(index, weight)


def by_loop(module: nn.Module, kernel: Kernel, clip, points, batch) -> Tensor:
    """Sample after sample, each on a module of its own."""
    rows = torch.zeros_like(points)
    for j, row in enumerate(points):
        index = batch.index if batch.index.dim() == 1 else batch.index[j]
        for b, sample in enumerate(index):
            twin = models.with_row(module, row)
            features, target = kernel.data(sample[None])
            nn.functional.cross_entropy(twin(features), target).backward()
            g = torch.cat([p.grad.flatten() for p in twin.parameters()])
            rows[j] += batch.weight[j, b] * g * min(1.0, clip / float(g.norm()))
    return rows


@pytest.mark.parametrize("name", MODELS)
def test_every_sample_s_gradient_is_cut_to_the_bound(name: str) -> None:
    clip = 0.4
    module, kernel, clipped, points, batch = problem(name, clip)
    wanted = by_loop(module, kernel, clip, points, batch)
    torch.testing.assert_close(clipped.grad(points, batch), wanted, **EXACT)
    assert not torch.allclose(wanted, kernel.grad(points, batch))  # the bound binds


@pytest.mark.parametrize("name", MODELS)
def test_without_a_bound_it_is_the_ordinary_gradient(name: str) -> None:
    _, kernel, clipped, points, batch = problem(name, math.inf)
    wanted = kernel.grad(points, batch)
    torch.testing.assert_close(clipped.grad(points, batch), wanted, **EXACT)


@pytest.mark.parametrize("name", ["mlp", "cnn", "normalised"])
def test_rows_may_share_their_samples(name: str) -> None:
    module, kernel, clipped, points, batch = problem(name, 0.4)
    shared = Batch(batch.index[0], batch.weight)
    wanted = by_loop(module, kernel, 0.4, points, shared)
    torch.testing.assert_close(clipped.grad(points, shared), wanted, **EXACT)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][2]])
@pytest.mark.parametrize("recorder", [VectorisedRecorder, StackedRecorder])
def test_both_tapes_give_the_same(name: str, recorder: type, monkeypatch) -> None:
    """Rows with padding in the midst, rows of nothing else, and a row alone."""
    module, kernel, clipped, points, batch = problem(name, 0.4)
    batch = Batch(batch.index, batch.weight.clone())
    batch.weight[0] = 0
    program = Tape(kernel, recorder)
    monkeypatch.setattr(clipped, "_program", lambda _: program)
    wanted = by_loop(module, kernel, 0.4, points, batch)
    if recorder is VectorisedRecorder or program.recorder.is_linear:
        torch.testing.assert_close(clipped.grad(points, batch), wanted, **EXACT)
    for row in (slice(0, 1), slice(1, 2)):
        found = clipped.grad(points[row], batch[row])
        torch.testing.assert_close(found, wanted[row], **EXACT)


@pytest.mark.parametrize(
    ("name", "many"), [("mlp", StackedRecorder), ("cnn", VectorisedRecorder)]
)
def test_convolutions_of_many_clients_are_vectorised(name: str, many: type) -> None:
    *_, clipped, points, _ = problem(name, 0.4)
    assert isinstance(clipped._program(points).recorder, many)
    assert isinstance(clipped._program(points[:1]).recorder, StackedRecorder)


def kernel_of(module: nn.Module, shape=(4,)) -> Kernel:
    """A kernel of forty samples; one of them is loud."""
    features = torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    features[0] *= 100
    targets = torch.arange(40) % 3
    return Kernel(module, OBJECTIVES["classification"], features, targets)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Centred(), (4,)),
        (Attending(), (4,)),
        (Threes(), (4,)),
        (nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)), (4,)),
        (nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False)), (4,)),
        # A batch of two images without channels is one image of two channels.
        (nn.Sequential(nn.Conv2d(2, 2, 2), nn.Flatten(), nn.Linear(9, 3)), (4, 4)),
    ],
)
def test_a_model_that_couples_samples_is_refused(module, shape) -> None:
    with pytest.raises(InputError, match="depends on the other samples"):
        ClippedKernel(kernel_of(module, shape), 1.0)


@pytest.mark.parametrize("module", [Many(), Signalled()])
def test_a_model_that_hides_its_coupling_is_given_one_sample_at_a_time(module) -> None:
    """No sample moves an answer by more than its bound, whoever is in its batch."""
    kernel = kernel_of(module)
    clipped = ClippedKernel(kernel, 0.5, 1.0)
    point = torch.randn(
        1, kernel.parameters, generator=torch.Generator().manual_seed(1)
    )
    every, without = torch.arange(40)[None], torch.arange(1, 40)[None]
    one = torch.ones(1, 40)
    g, less = (
        clipped.grad(point, Batch(i, one[:, : i.shape[1]])) for i in (every, without)
    )
    assert float((g - less).norm()) <= 0.5 + 1e-5
    coupled = kernel.grad(point, Batch(every, one)) - kernel.grad(
        point, Batch(without, one[:, 1:])
    )
    assert float(coupled.norm()) > 5
    losses = clipped.losses(point, Batch(every, one))
    assert torch.equal(losses[:, 1:], clipped.losses(point, Batch(without, one[:, 1:])))
    alone = [
        clipped.losses(point, Batch(i[None, None], one[:, :1]))
        for i in torch.arange(40)
    ]
    torch.testing.assert_close(losses, torch.cat(alone, 1))


def test_a_hook_or_a_method_of_an_object_ends_the_quick_way() -> None:
    plain = nn.Sequential(nn.Linear(4, 3))
    assert keeps_samples_apart(plain)
    plain[0].register_forward_hook(lambda _, __, out: out)
    assert not keeps_samples_apart(plain)
    swapped = nn.Sequential(nn.Linear(4, 3))
    swapped[0].forward = lambda h: h[:, :3] - h.mean()
    assert not keeps_samples_apart(swapped)
    assert not keeps_samples_apart(nn.Sequential(nn.Flatten(0)))


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_built_in_models_keep_samples_apart(name: str) -> None:
    shape = {"cnn": (1, 10, 10), "lenet": (1, 28, 28), "unet3d": (1, 4, 4, 4)}
    assert keeps_samples_apart(models.MODELS[name](shape.get(name, (4,)), 3))


def test_a_sample_without_a_gradient_stays_without_one() -> None:
    """The squared error of a perfect model, where C / |g| has no value."""
    features = torch.ones(1, 2, dtype=REAL)
    kernel = Kernel(
        nn.Linear(2, 1, bias=False).to(REAL),
        OBJECTIVES["regression"],
        features,
        torch.zeros(1, dtype=REAL),
    )
    batch = Batch(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=REAL))
    for clip in (1.0, math.inf):
        found = ClippedKernel(kernel, clip).grad(torch.zeros(1, 2, dtype=REAL), batch)
        assert found.tolist() == [[0.0, 0.0]]


def test_places_that_cancel_do_not_hide_a_gradient_s_length() -> None:
    """Two places whose products are 1e16 times what is left of them, in 24 bits."""
    rng = torch.Generator().manual_seed(0)
    v, u, rest = (torch.randn(200, 4, generator=rng) for _ in range(3))
    e = torch.stack([v, v], 1)[None] * 1e4  # (1, 200, 2, 4)
    h = torch.stack([1e4 * u, rest - 1e4 * u], 1)[None]
    squares, gradients = product(e, h)
    cut = factors(squares, 1.0)
    for b in range(200):
        alone = torch.zeros_like(cut)
        alone[0, b] = cut[0, b]
        left, right = gradients.weighted_factors(alone)
        assert float((left.mT @ right).norm()) <= 1 + 1e-5


@pytest.mark.parametrize("name", ["mlp", "cnn", "normalised"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_sample_whose_gradient_overflows_counts_as_nothing(name, shared) -> None:
    """Or it would show: no bound holds for it."""
    _, kernel, clipped, points, batch = problem(name, 0.4)
    index = torch.arange(5) if shared else torch.arange(10).view(2, 5)
    without = batch.weight.clone()
    without[:, 2] = 0
    wanted = clipped.grad(points, Batch(index, without))
    kernel._features[index[..., 2]] = math.inf
    found = clipped.grad(points, Batch(index, batch.weight))
    torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize("name", ["mlp", "cnn", "normalised"])
def test_a_row_of_samples_that_all_overflow_is_zero_and_leaves_others_alone(name):
    _, kernel, clipped, points, batch = problem(name, 0.4)
    index = torch.arange(10).view(2, 5)
    wanted = clipped.grad(points, Batch(index, batch.weight))
    kernel._features[index[0]] = math.nan
    found = clipped.grad(points, Batch(index, batch.weight))
    assert torch.equal(found[0], torch.zeros_like(found[0]))
    torch.testing.assert_close(found[1], wanted[1], **EXACT)


def test_a_target_that_is_no_number_counts_as_nothing(regression) -> None:
    """Its slopes are none either, whatever the features are."""
    plain, x = simulated(regression, batch_size=0)
    clipped = ClippedKernel(plain.kernel, 0.4)
    index = torch.arange(10).view(2, 5)
    weight = torch.full((2, 5), 0.2, dtype=x.dtype)
    without = weight.clone()
    without[:, 2] = 0
    wanted = clipped.grad(x[:2], Batch(index, without))
    plain.kernel._targets[index[:, 2]] = math.nan
    found = clipped.grad(x[:2], Batch(index, weight))
    torch.testing.assert_close(found, wanted, **EXACT)


def test_nobody_asked_gives_no_rows() -> None:
    _, _, clipped, points, batch = problem("mlp", 1.0)
    assert clipped.grad(points[:0], batch[:0]).shape == (0, points.shape[1])


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_bound_is_positive(clip: float) -> None:
    _, kernel, *_ = problem("mlp", 1.0)
    with pytest.raises(InputError, match="`clip` must be"):
        ClippedKernel(kernel, clip)

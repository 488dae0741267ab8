"""Claims about losses, gradients and measures of many models at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from coterie import models
from coterie.clients import kernels
from coterie.clients.kernels import Kernel
from coterie.clients.samples import Batch
from coterie.models import OBJECTIVES, Objective, OfClient
from coterie.models.objectives import cross_entropy

REAL = torch.float64
# Sums of at most some hundred products in double precision, in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def mlp() -> nn.Module:
    return models.build(
        lambda: models.mlp((4,), 3, hidden=(5,), activation="tanh"), 0, REAL
    )


def cnn() -> nn.Module:
    return models.build(lambda: models.cnn((1, 10, 10), 3, width=2), 0, REAL)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=REAL)


def classes(count: int) -> torch.Tensor:
    return torch.randint(0, 3, (count,), generator=torch.Generator().manual_seed(9))


def rows(module: nn.Module, n: int) -> torch.Tensor:
    return models.ravel(module) + drawn(n, len(models.ravel(module)), seed=5) / 4


def batches(n: int, samples: int, table: int) -> dict[str, Batch]:
    """Samples of each row, samples that all rows share, and weights with zeros."""
    rng = torch.Generator().manual_seed(2)
    weight = torch.rand(n, samples, generator=rng, dtype=REAL)
    weight[0, :2] = 0
    own = torch.randint(0, table, (n, samples), generator=rng)
    return {"own": Batch(own, weight), "shared": Batch(own[0], weight)}


def classifying(module, features, **options) -> tuple[Kernel, torch.Tensor]:
    """A kernel of samples with random classes, and these."""
    targets = classes(len(features))
    task = OBJECTIVES["classification"]
    return Kernel(module, task, features, targets, **options), targets


def loss_of_row(module, row, features, targets, index, weight) -> torch.Tensor:
    """The weighted loss of one row, by hand on an nn.Module of its own."""
    outputs = functional_call(module, models.layout(module).unravel(row), features)
    return (OBJECTIVES["classification"].loss(outputs, targets)[index] * weight).sum()


def gradient_loop(module, points, features, targets, batch) -> torch.Tensor:
    out = []
    for j, point in enumerate(points):
        twin = models.with_row(module, point)
        index = batch.index if batch.index.dim() == 1 else batch.index[j]
        losses = nn.functional.cross_entropy(
            twin(features[index]), targets[index], reduction="none"
        )
        (losses @ batch.weight[j]).backward()
        out.append(torch.cat([p.grad.flatten() for p in twin.parameters()]))
    return torch.stack(out)


@pytest.mark.parametrize("by_row", [False, True, None])
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_gradients_equal_autograd_on_one_module_per_row(kind, by_row):
    features = drawn(20, 4)
    kernel, targets = classifying(mlp(), features, by_row=by_row)
    points, batch = rows(mlp(), 6), batches(6, 7, 20)[kind]
    expected = gradient_loop(mlp(), points, features, targets, batch)
    assert_close(kernel.grad(points, batch), expected, **EXACT)


@pytest.mark.parametrize("clients", [2, 7])  # 7: as many as samples of a minibatch
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_a_linear_layer_may_stand_at_every_place_of_a_sequence(kind, clients):
    layers = nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)
    module, features = nn.Sequential(*layers).to(REAL), drawn(20, 3, 4)
    kernel, targets = classifying(module, features)
    points, batch = rows(module, clients), batches(clients, 7, 20)[kind]
    expected = gradient_loop(module, points, features, targets, batch)
    assert_close(kernel.grad(points, batch), expected, **EXACT)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_hessian_products_equal_double_backward(kind):
    features, module = drawn(20, 4), mlp()
    kernel, targets = classifying(module, features)
    points, batch = rows(module, 4), batches(4, 7, 20)[kind]
    vectors = drawn(*points.shape, seed=8)
    found = kernel.hvp(points, vectors, batch)
    for j in range(4):
        index = batch.index if kind == "shared" else batch.index[j]

        def loss(row, index=index, j=j):
            return loss_of_row(module, row, features, targets, index, batch.weight[j])

        _, expected = torch.autograd.functional.hvp(loss, points[j], vectors[j])
        assert_close(found[j], expected, **EXACT)


def test_hessian_products_of_linear_regression_have_a_closed_form():
    features, targets = drawn(9, 3), drawn(9, seed=1)
    module = models.build(lambda: models.linear((3,), 1, bias=False), 0, REAL)
    kernel = Kernel(module, OBJECTIVES["regression"], features, targets)
    batch = Batch(torch.arange(9), torch.full((2, 9), 1 / 9, dtype=REAL))
    vectors = drawn(2, 3, seed=2)
    expected = 2 / 9 * vectors @ features.T @ features
    assert_close(kernel.hvp(drawn(2, 3), vectors, batch), expected, **EXACT)


@pytest.mark.parametrize("kind", ["own", "shared"])
def test_losses_and_measures_equal_a_loop_over_modules(kind):
    features = drawn(20, 4)
    kernel, targets = classifying(mlp(), features)
    points, batch = rows(mlp(), 5), batches(5, 7, 20)[kind]
    found = kernel.measure(points, batch)
    for j in range(5):
        twin = models.with_row(mlp(), points[j])
        index = batch.index if kind == "shared" else batch.index[j]
        outputs, truth = twin(features[index]).detach(), targets[index]
        losses = -outputs.log_softmax(1)[torch.arange(7), truth]
        right = (outputs.argmax(1) == truth).to(REAL)
        assert_close(found["loss"][j], losses @ batch.weight[j], **EXACT)
        assert_close(found["accuracy"][j], right @ batch.weight[j], **EXACT)
    assert_close(kernel.loss(points, batch), found["loss"], rtol=0, atol=0)


@pytest.mark.parametrize("at_once", [2, 512])
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_whole_clients_are_measured_on_all_that_counts(monkeypatch, kind, at_once):
    monkeypatch.setattr(kernels, "_EVALUATED_AT_ONCE", at_once)
    features = drawn(40, 4)
    targets = (features[:, 0] > 0).long()
    module = models.build(lambda: models.mlp((4,), 1, hidden=(5,)), 0, REAL)
    kernel = Kernel(module, OBJECTIVES["binary"], features, targets)
    points, batch = rows(module, 5), batches(5, 9, 40)[kind]
    found = kernel.measure(points, batch)
    for j in range(5):
        index = batch.index if kind == "shared" else batch.index[j]
        index = index[batch.weight[j] != 0]  # without two samples of the first row
        outputs = models.with_row(module, points[j])(features[index]).detach()
        expected = roc_auc_score(targets[index], outputs[:, 0])
        assert float(found["auc"][j]) == pytest.approx(expected, abs=1e-12)


def test_whole_clients_are_measured_by_functions_of_any_kind():
    seen = []

    def longest(outputs, targets) -> float:
        seen.append((outputs.shape, targets.tolist()))
        return float(np.linalg.norm(outputs.numpy(), axis=1).max())

    features, targets = drawn(6, 4), classes(6)
    objective = Objective(cross_entropy, {"longest": OfClient(longest)})
    kernel = Kernel(mlp(), objective, features, targets)
    weight = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=REAL)
    batch = Batch(torch.tensor([[0, 1, 2], [3, 4, 5]]), weight)
    points = rows(mlp(), 2)
    found = kernel.measure(points, batch)["longest"]
    assert seen == [((2, 3), targets[:2].tolist()), ((3, 3), targets[3:].tolist())]
    for j, mine in enumerate((features[:2], features[3:])):
        outputs = models.with_row(mlp(), points[j])(mine).detach()
        assert_close(found[j], outputs.norm(dim=1).max(), **EXACT)


@pytest.mark.parametrize("budget", [1, 300, 10_000])
@pytest.mark.parametrize("kind", ["own", "shared"])
def test_the_answer_does_not_depend_on_the_size_of_a_chunk(monkeypatch, kind, budget):
    kernel, _ = classifying(mlp(), drawn(20, 4))
    points, batch = rows(mlp(), 6), batches(6, 7, 20)[kind]
    vectors = drawn(*points.shape, seed=8)

    def answers():
        grads, hvps = kernel.grad(points, batch), kernel.hvp(points, vectors, batch)
        return grads, hvps, kernel.loss(points, batch)

    at_once = answers()
    monkeypatch.setitem(kernels._BUDGET, "cpu", budget)
    assert (kernel.chunk(7) < 6) == (budget < 10_000)
    assert_close(at_once, answers(), **EXACT)


def test_a_chunk_of_rows_keeps_to_the_budget():
    kernel, _ = classifying(mlp(), drawn(20, 4))
    # Features 4, the same flattened 4, hidden 5 and activated 5, outputs 3, and their
    # gradients; three copies of the 5 (4 + 1) + 3 (5 + 1) = 43 parameters.
    row = 7 * 2 * (4 + 4 + 5 + 5 + 3) + 3 * 43
    assert kernel.chunk(7) == 2**25 // row
    assert kernel.chunk(10**9) == 1
    assert kernel.chunk(7, extra=2) == 2**25 // (row + 2 * 43)


def test_the_rule_for_convolutions_changes_nothing_but_the_order_of_work():
    features, points = drawn(30, 1, 10, 10), rows(cnn(), 3)
    rng = torch.Generator().manual_seed(4)
    long = torch.randint(0, 30, (3, kernels._LONG_ROW + 1), generator=rng)
    weight = torch.rand(3, long.shape[1], generator=rng, dtype=REAL)
    weight[1, 5:] = 0
    batch = Batch(long, weight)
    expected = gradient_loop(cnn(), points, features, classes(30), batch)
    for by_row in (None, True, False):
        kernel, _ = classifying(cnn(), features, by_row=by_row)
        assert kernel.convolves_long_rows(batch) is (by_row is not False)
        assert_close(kernel.grad(points, batch), expected, **EXACT)
    short = Batch(long[:, :4], weight[:, :4])
    assert not classifying(cnn(), features)[0].convolves_long_rows(short)


def test_frozen_parameters_take_part_but_get_no_gradient():
    module = mlp()
    module.body[1].weight.requires_grad_(False)
    features = drawn(8, 4)
    kernel, targets = classifying(module, features)
    row = models.ravel(module)
    batch = Batch(torch.arange(8), torch.full((1, 8), 1 / 8, dtype=REAL))
    twin = models.with_row(module, row)
    nn.functional.cross_entropy(twin(features), targets).backward()
    expected = [p.grad.flatten() for p in twin.parameters() if p.requires_grad]
    assert_close(kernel.grad(row[None], batch)[0], torch.cat(expected), **EXACT)


def test_a_kernel_leaves_the_module_that_it_is_given_alone():
    module = models.build(lambda: models.linear((4,), 3), 0, torch.float32)
    before = models.ravel(module)
    classifying(module, drawn(5, 4))
    assert models.ravel(module).dtype == torch.float32
    assert torch.equal(models.ravel(module), before)


class Reader(nn.Module):
    """Classes of sentences of words 0 .. 6, of which 0 fills up."""

    def __init__(self, kind: type[nn.Module] = nn.GRU, **options) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=0)
        self.recurrent = kind(4, 3, batch_first=True, **options)
        self.head = nn.Linear(3 * (1 + self.recurrent.bidirectional), 3)

    def forward(self, sentences: torch.Tensor) -> torch.Tensor:
        count = self.recurrent.num_layers * (1 + self.recurrent.bidirectional)
        start = torch.ones(count, len(sentences), self.recurrent.hidden_size)
        start = start.to(self.words.weight.dtype)
        lstm = isinstance(self.recurrent, nn.LSTM) or self.recurrent.mode == "LSTM"
        start = (start, start) if lstm else start
        outputs, _ = self.recurrent(self.looked_up(sentences), start)
        return self.head(outputs[:, -1])

    def looked_up(self, sentences: torch.Tensor) -> torch.Tensor:
        return self.words(sentences)


class ReaderByFunction(Reader):
    def looked_up(self, sentences: torch.Tensor) -> torch.Tensor:
        return F.embedding(sentences, self.words.weight, padding_idx=0)


def sentences(count: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    return torch.randint(0, 7, (count, 5), generator=rng)


READERS = {
    "gru": lambda: Reader(),
    "by function": ReaderByFunction,
    "lstm": lambda: Reader(nn.LSTM),
    "deep": lambda: Reader(num_layers=2, bidirectional=True),
    "rnn": lambda: Reader(nn.RNN),
}


@pytest.mark.parametrize("by_row", [None, True])
@pytest.mark.parametrize("kind", ["own", "shared"])
@pytest.mark.parametrize("name", READERS)
def test_whole_features_and_recurrent_layers_equal_autograd_on_one_module_per_row(
    name, kind, by_row
):
    features, module = sentences(12), models.build(READERS[name], 0, REAL)
    kernel, targets = classifying(module, features, by_row=by_row)
    points, batch = rows(module, 4), batches(4, 6, 12)[kind]
    expected = gradient_loop(module, points, features, targets, batch)
    assert_close(kernel.grad(points, batch), expected, **EXACT)
    for j, point in enumerate(points):
        index = batch.index if kind == "shared" else batch.index[j]
        given = point, features, targets, index, batch.weight[j]
        loss = loss_of_row(models.with_row(module, point), *given).detach()
        assert_close(kernel.loss(points, batch)[j], loss, **EXACT)


def test_hessian_products_of_recurrent_layers_equal_double_backward():
    features, module = sentences(12), models.build(Reader, 0, REAL)
    kernel, targets = classifying(module, features)
    points, batch = rows(module, 2), batches(2, 6, 12)["own"]
    vectors = drawn(*points.shape, seed=8)
    found = kernel.hvp(points, vectors, batch)
    for j in range(2):

        def gradient(row, j=j):
            twin = row.clone().requires_grad_()
            loss = loss_of_row(
                module, twin, features, targets, batch.index[j], batch.weight[j]
            )
            return torch.autograd.grad(loss, twin)[0]

        step = 1e-5  # central differences, whose error is of order step^2
        ahead, behind = (gradient(points[j] + s * step * vectors[j]) for s in (1, -1))
        assert_close(found[j], (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_features_leave_the_precision_to_the_models(dtype):
    module = models.build(Reader, 0, dtype)
    kernel, _ = classifying(module, sentences(6))
    points = models.ravel(module)[None]
    batch = Batch(torch.arange(6), points.new_full((1, 6), 1 / 6))
    assert kernel.grad(points, batch).dtype == dtype
    assert kernel.measure(points, batch)["accuracy"].dtype == dtype


def test_models_with_recurrent_layers_are_not_compiled():
    module = models.build(Reader, 0, REAL)
    assert not classifying(module, sentences(6), compiled=True)[0].compiled
    assert classifying(mlp(), drawn(6, 4), compiled=True)[0].compiled


def test_a_chunk_of_recurrent_rows_counts_every_step():
    module = models.build(Reader, 0, REAL)
    kernel, _ = classifying(module, sentences(6))
    # Words 5, their vectors 5 x 4, 20 values for each of 5 x 3 outputs and 3 of the
    # last state, outputs 3; 28 + (9 (4 + 3) + 18) + 12 parameters.
    row = 7 * 2 * (5 + 20 + 20 * (15 + 3) + 3) + 3 * (28 + 81 + 12)
    assert kernel.chunk(7) == 2**25 // row


def test_a_loss_of_no_model_has_no_slope():
    constant = Objective(lambda outputs, targets: targets.to(REAL), {}, "loss", False)
    kernel = Kernel(mlp(), constant, drawn(6, 4), classes(6))
    x = rows(mlp(), 2)
    found = kernel.grad(x, batches(2, 3, 6)["own"])
    assert_close(found, torch.zeros_like(x), rtol=0, atol=0)


class Mirror(nn.Module):
    """Two layers with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.back = nn.Linear(4, 4), nn.Linear(4, 4)
        self.back.weight = self.ahead.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.back(self.ahead(x).tanh()).tanh())


@pytest.mark.parametrize("by_row", [None, True])
def test_a_matrix_of_two_layers_is_one_in_a_row_too(by_row):
    module, features = models.build(Mirror, 0, REAL), drawn(9, 4)
    points, batch = rows(module, 3), batches(3, 5, 9)["own"]
    assert points.shape[1] == 16 + 4 + 4 + 15
    kernel, targets = classifying(module, features, by_row=by_row)
    expected = gradient_loop(module, points, features, targets, batch)
    assert_close(kernel.grad(points, batch), expected, **EXACT)

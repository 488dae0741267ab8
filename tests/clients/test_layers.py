"""Claims about layers that are computed for many models at once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.clients.kernels import Kernel
from coterie.clients.layers import for_many_models
from coterie.clients.samples import Batch
from coterie.models import OBJECTIVES, build, ravel
from coterie.models.losses import cross_entropy

REAL = torch.float64
# Sums of some dozen products in double precision, in another order.
EXACT = {"rtol": 1e-10, "atol": 1e-12}
B, T, E, H = 3, 5, 4, 2


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=REAL)


def made(kind: type[nn.Module], **options) -> tuple[nn.Module, nn.Module]:
    """A layer of torch, and ours with the same parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        layer = kind(E, H, dtype=REAL, **options)
    return layer, for_many_models(copy.deepcopy(layer), on_cpu=True)


def assert_same(layer: nn.Module, ours: nn.Module, *inputs) -> None:
    """Outputs, states, and the gradients of parameters and inputs."""
    names = [name for name, _ in layer.named_parameters()]
    assert [name for name, _ in ours.named_parameters()] == names
    results = []
    for each in (layer, ours):
        given = [x.clone().requires_grad_() for x in inputs if x is not None]
        state = tuple(given[1:]) if len(given) > 2 else (*given[1:], None)[0]
        found = torch.utils._pytree.tree_leaves(each(given[0], state))
        total = sum((part.sin() * (n + 1)).sum() for n, part in enumerate(found))
        wanted = [*each.parameters(), *given]
        results.append((found, torch.autograd.grad(total, wanted)))
    assert_close(results[1], results[0], **EXACT)


OPTIONS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True},
]
LAYERS = [(kind, o) for kind in (nn.GRU, nn.LSTM, nn.RNN) for o in OPTIONS]
LAYERS += [(nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {"proj_size": 1})]
LAYERS += [(nn.LSTM, {"proj_size": 1, "num_layers": 2, "bidirectional": True})]


@pytest.mark.parametrize(("kind", "options"), LAYERS)
def test_recurrent_layers_step_by_step_equal_those_of_torch(kind, options):
    layer, ours = made(kind, **options)
    assert type(ours) is not kind
    assert_same(layer, ours, drawn(T, B, E))
    assert_same(layer, ours, drawn(T, E))  # one sequence, without a batch
    count = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    batch = T if options.get("batch_first") else B
    first = drawn(count, batch, options.get("proj_size", H), seed=2)
    second = drawn(count, batch, H, seed=3)
    states = (first, second) if kind is nn.LSTM else (first,)
    assert_same(layer, ours, drawn(T, B, E), *states)
    assert_same(layer, ours, drawn(T, E), *(state[:, 0] for state in states))


CELLS = [nn.GRUCell, nn.LSTMCell, nn.RNNCell]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_cells_equal_those_of_torch(kind, bias):
    layer, ours = made(kind, bias=bias)
    states = (drawn(B, H, seed=2), drawn(B, H, seed=3))
    states = states if kind is nn.LSTMCell else states[:1]
    assert_same(layer, ours, drawn(B, E))
    assert_same(layer, ours, drawn(B, E), *states)
    assert_same(layer, ours, drawn(E), *(state[0] for state in states))


def test_a_plain_cell_keeps_its_nonlinearity():
    layer, ours = made(nn.RNNCell, nonlinearity="relu")
    assert_same(layer, ours, drawn(B, E))


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_with_weights_first_equal_those_of_torch(bias):
    layer, ours = made(nn.Linear, bias=bias)
    assert type(ours) is not nn.Linear
    assert_close(ours(drawn(B, E)), layer(drawn(B, E)), **EXACT)
    assert_close(ours(drawn(T, B, E)), layer(drawn(T, B, E)), **EXACT)


def test_layers_inside_a_module_are_exchanged_and_keep_what_models_read():
    net = nn.Sequential(nn.Linear(E, E), nn.Sequential(nn.GRU(E, H)), nn.ReLU())
    ours = for_many_models(copy.deepcopy(net), on_cpu=False)
    assert type(ours[0]) is nn.Linear and type(ours[1][0]) is not nn.GRU
    assert ours[1][0].hidden_size == H
    ours = for_many_models(copy.deepcopy(net), on_cpu=True)
    assert type(ours[0]) is not nn.Linear and ours[0].in_features == E
    assert [name for name, _ in ours.named_parameters()] == [
        name for name, _ in net.named_parameters()
    ]


def test_packed_sequences_are_refused_in_a_sentence():
    _, ours = made(nn.GRU)
    packed = nn.utils.rnn.pack_sequence([drawn(3, E), drawn(2, E)])
    with pytest.raises(InputError, match="need padded sequences, not packed ones"):
        ours(packed)


class Vectorised(nn.Sequential):
    """The same layers, which a kernel takes for any module."""


def plain_layers() -> list[nn.Module]:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    inner = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Flatten())
    return [nn.Flatten(), frozen, nn.ELU(), inner, nn.Linear(5, 3)]


@pytest.mark.parametrize("loss", [cross_entropy, lambda o, t: cross_entropy(o, t)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_chain_of_plain_layers_equals_the_same_layers_vectorised(shared, loss):
    features, targets = drawn(20, 2, 2), torch.arange(20) % 3
    objective = OBJECTIVES["classification"]._replace(loss=loss)
    weight, index = drawn(5, 7, seed=1).abs(), torch.arange(35).view(5, 7) % 20
    batch, answers = Batch(index[0] if shared else index, weight), []
    for kind in (nn.Sequential, Vectorised):
        module = build(lambda kind=kind: kind(*plain_layers()), 0, REAL)
        kernel = Kernel(module, objective, features, targets)
        points = ravel(module) + drawn(5, kernel.parameters, seed=2)
        hvp = kernel.hvp(points, drawn(*points.shape, seed=3), batch)
        measures = kernel.measure(points, batch).values()
        each = kernel.grad(points, batch), hvp, kernel.losses(points, batch)
        answers.append((*each, *measures))
    assert_close(*answers, **EXACT)

"""Claims about rows of numbers as models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models
from coterie.checks import InputError
from support.refusals import refusal, refuses


def size(module: nn.Module) -> int:
    return sum(models.layout(module).sizes)


def test_ravel_and_unravel_are_inverse():
    module = models.build(lambda: models.mlp((4,), 3, hidden=(5, 2)), seed=0)
    parts = models.layout(module).unravel(models.ravel(module))
    named = dict(module.named_parameters())
    assert list(parts) == list(named)
    for name, part in parts.items():
        assert torch.equal(part, named[name])
    row = torch.arange(float(size(module)))
    assert torch.equal(models.ravel(models.with_row(module, row)), row)


def test_ravel_gives_a_copy():
    module = models.build(lambda: models.linear((2,), 1), seed=0)
    row = models.ravel(module)
    before = row.clone()
    with torch.no_grad():
        module[1].weight.add_(1)
    assert torch.equal(row, before)


def test_a_module_with_a_row_computes_with_that_row_and_leaves_both_alone():
    module = models.build(lambda: models.linear((3,), 1), seed=0)
    before = models.ravel(module)
    row = torch.tensor([1.0, 2.0, 3.0, 4.0])
    twin = models.with_row(module, row)
    assert_close(twin(torch.tensor([[1.0, 1.0, 1.0]])), torch.tensor([[10.0]]))
    assert torch.equal(models.ravel(module), before)
    with torch.no_grad():
        twin[1].weight.zero_()
        twin[1].bias.zero_()
    assert torch.equal(models.ravel(module), before)
    assert row.tolist() == [1, 2, 3, 4]


def test_build_is_seeded_and_leaves_the_global_generator_alone():
    def start(seed: int) -> torch.Tensor:
        return models.ravel(models.build(lambda: models.mlp((4,), 2), seed))

    before = torch.get_rng_state()
    first = start(3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5, generator=torch.default_generator)
    assert torch.equal(start(3), first)
    assert not torch.equal(start(4), first)


def test_build_gives_the_asked_precision():
    module = models.build(lambda: models.linear((2,), 1), 0, torch.float64)
    assert models.ravel(module).dtype == torch.float64


def test_build_refuses_what_is_no_module():
    refuses(r"`model` must give an nn\.Module", models.build, lambda: "mlp", seed=0)


def batch_norm_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (batch_norm_net, r"running statistics in 1, .*with_batch_statistics"),
        (lambda: nn.BatchNorm1d(3), "running statistics in model"),
        (
            lambda: nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)),
            "running statistics in 0",
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.5)),
            r"random masks in 1 .*remove the dropout",
        ),
        (
            lambda: nn.GRU(2, 2, num_layers=2, dropout=0.5),
            r"random masks in model .*remove the dropout",
        ),
    ],
)
def test_statistics_and_masks_are_refused_by_the_name_of_the_layer(make, message):
    refuses(message, models.build, make, seed=0)


def test_dropout_that_does_nothing_is_no_dropout():
    models.build(lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)), seed=0)
    models.build(lambda: nn.GRU(2, 2, num_layers=2), seed=0)


def test_group_norm_takes_the_place_of_batch_norm():
    before = batch_norm_net()
    module = models.build(lambda: models.with_group_norm(before), seed=0)
    norm = module[1]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels) == (2, 6)  # gcd(8, 6) = 2
    assert isinstance(before[1], nn.BatchNorm2d)
    assert size(module) == sum(p.numel() for p in before.parameters())
    alone = models.with_group_norm(nn.BatchNorm1d(8))
    assert isinstance(alone, nn.GroupNorm) and alone.num_groups == 8


def test_group_norm_keeps_scale_and_shift():
    layer = nn.BatchNorm1d(4)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(4.0))
        layer.bias.fill_(2.0)
    norm = models.with_group_norm(layer)
    assert_close(norm.weight, torch.arange(4.0), check_stride=False)
    assert_close(norm.bias, torch.full((4,), 2.0))


def test_nested_batch_norm_is_replaced_everywhere():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.ReLU())
    models.refuse_unsuitable(models.with_group_norm(net))


def test_frozen_parameters_are_no_part_of_a_row():
    module = models.build(lambda: models.mlp((3,), 2, hidden=(4,)), seed=0)
    module.body[1].weight.requires_grad_(False)
    frozen = module.body[1].weight.clone()
    # 4 biases, then 2 (4 + 1)
    assert size(module) == 14
    assert len(models.ravel(module)) == 14
    twin = models.with_row(module, torch.zeros(14))
    assert torch.equal(twin.body[1].weight, frozen)
    assert (twin.head.weight == 0).all()


def test_a_model_without_parameters_is_refused():
    refuses("must have parameters to train", models.layout, nn.Flatten())


class Net(nn.Module):
    """Parameters of sizes 6, 2, 2, 2, 2, 2, 4, 2, in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.ReLU())
        self.norm1 = nn.LayerNorm(2)
        self.head = nn.Linear(2, 2)


PLACES = {
    "body.0.weight": range(0, 6),
    "body.0.bias": range(6, 8),
    "body.1": range(8, 12),
    "norm1": range(12, 16),
    "head": range(16, 22),
}


@pytest.mark.parametrize(
    ("patterns", "places"),
    [
        (["head"], ["head"]),
        (["norm*"], ["norm1"]),
        (["norm*", "head"], ["norm1", "head"]),
        (["body"], ["body.0.weight", "body.0.bias", "body.1"]),
        (["body.1"], ["body.1"]),
        (["body.1.*"], ["body.1"]),
        (["body.0.bias"], ["body.0.bias"]),
        (["0"], ["body.0.weight", "body.0.bias"]),
        (["[01]"], ["body.0.weight", "body.0.bias", "body.1"]),
        (["head", "head"], ["head"]),
        ([], []),
    ],
)
def test_patterns_name_columns_by_path_by_module_and_by_parameter(patterns, places):
    expected = [any(j in PLACES[place] for place in places) for j in range(22)]
    assert models.columns(Net(), patterns).tolist() == expected
    assert models.columns(models.layout(Net()), patterns).tolist() == expected


def test_named_columns_hold_the_parameters_of_that_name():
    net = Net()
    mine = models.ravel(net)[models.columns(net, ["head"])]
    assert torch.equal(mine, models.ravel(net.head))


def test_frozen_parameters_have_no_columns():
    net = Net()
    net.body.requires_grad_(False)
    assert models.columns(net, ["norm1"]).tolist() == [True] * 4 + [False] * 6
    refuses("no module of the model matches 'body'", models.columns, net, ["body"])


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            ["norm1", "haed"],
            "no module of the model matches 'haed': it has body, body.0, body.1, "
            "norm1, head. Did you mean 'head'?",
        ),
        (["bias"], "no module of the model matches 'bias': it has body, body.0, "),
        (
            ["*"],
            "nothing would be shared: every parameter of the model matches '*', so",
        ),
        (
            ["body", "norm1", "head"],
            "nothing would be shared: every parameter of the model matches 'body' or "
            "'norm1' or 'head', so name fewer modules or use a model with more.",
        ),
    ],
)
def test_patterns_that_name_nothing_or_everything_are_refused(patterns, message):
    assert refusal(models.columns, Net(), patterns).startswith(message)


@pytest.mark.parametrize("patterns", ["head", [1], None])
def test_patterns_that_are_no_list_of_texts_are_refused(unchecked, patterns):
    said = refusal(models.columns, Net(), patterns)
    expected = f"`patterns` must be a list of texts, got {patterns!r}."
    assert said == expected


def test_matrices_of_a_model_are_where_its_parameters_lie():
    module = models.build(lambda: models.cnn((1, 10, 10), 3, width=2), 0)
    rows, row = models.layout(module), models.ravel(module)
    parameters = rows.unravel(row)
    found = models.matrices(module).tolist()
    named = [name for name in rows.names if parameters[name].dim() > 1]
    assert len(found) == len(named)
    for (begin, o, i), name in zip(found, named, strict=True):
        part = row[begin : begin + o * i].view(o, i)
        assert torch.equal(part, parameters[name].flatten(1))
    assert models.matrices(module, ["head"]).tolist() == found[-1:]


def test_a_model_without_the_matrices_that_are_named_is_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    refuses(r"no matrices in 1\.", models.matrices, module, ["1"])
    refuses("no module of the model matches 'tail'", models.matrices, module, ["tail"])


def test_batch_norm_without_running_statistics_is_refused_for_what_it_does():
    """It keeps none, but mixes the samples of a batch."""
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm)
    with pytest.raises(InputError, match="over the samples of a batch in 1, ") as said:
        models.build(lambda: module, seed=0)
    assert "running statistics" not in str(said.value)
    models.build(lambda: models.with_group_norm(module), seed=0)


def test_a_pattern_names_a_bare_parameter_wherever_it_is():
    class Corrected(nn.Module):
        def __init__(self):
            super().__init__()
            self.A, self.B = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))

    module = nn.Sequential(Corrected(), nn.Linear(1, 1))
    named = models.columns(module, ["B"])
    assert named.tolist() == [False] * 2 + [True] * 3 + [False] * 2
    assert models.columns(Corrected(), ["B"]).tolist() == [False] * 2 + [True] * 3
    assert models.columns(module, ["[b1]*"]).tolist() == [False] * 5 + [True] * 2

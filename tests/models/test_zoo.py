"""Claims about models by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie import models
from support.refusals import refusal, refuses


def size(module: nn.Module) -> int:
    return sum(models.layout(module).sizes)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "parameters"),
    [
        # 6 (75 + 1) + 16 (150 + 1) + 120 (400 + 1) + 84 (120 + 1) + 10 (84 + 1)
        ("lenet", (3, 32, 32), 10, 62006),
        # With one channel and padding: 6 (25 + 1) in the first layer.
        ("lenet", (1, 28, 28), 10, 61706),
        # 8 (9 + 1) + 16 (72 + 1) + 48 (400 + 1) + 10 (48 + 1)
        ("cnn", (1, 28, 28), 10, 20986),
        ("linear", (12,), 2, 26),
        ("logistic", (2, 3), 1, 7),
        # 32 (64 + 1) + 10 (32 + 1)
        ("mlp", (64,), 10, 2410),
    ],
)
def test_parameter_counts_are_those_of_the_architecture(
    name, shape, outputs, parameters
):
    module = models.build(lambda: models.MODELS[name](shape, outputs), seed=0)
    assert size(module) == parameters
    assert module(torch.zeros(2, *shape)).shape == (2, outputs)


def test_unet3d_gives_one_value_per_voxel():
    module = models.build(lambda: models.unet3d((1, 8, 8, 8), 1, width=2), seed=0)
    rng = torch.Generator().manual_seed(0)
    assert module(torch.randn(2, 1, 8, 8, 8, generator=rng)).shape == (2, 1, 8, 8, 8)


def test_logistic_regression_starts_at_zero():
    assert (models.ravel(models.logistic((3,), 2)) == 0).all()


def test_a_perceptron_without_hidden_layers_is_linear():
    assert size(models.mlp((4,), 3, hidden=())) == 3 * (4 + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.mlp((2,), 1, hidden=[4, 0]),
            r"`hidden` must be a list of whole numbers of at least 1, got \[4, 0\]\.",
        ),
        (lambda: models.cnn((1, 28, 28), 2, width=0), "`width` must be at least 1"),
        (lambda: models.unet3d((1, 8, 8, 8), 1, width=0), "`width` must be at least 1"),
        (lambda: models.unet3d((1, 8, 8, 8), 1, depth=0), "`depth` must be at least 1"),
        (
            lambda: models.unet3d((1, 6, 8, 8), 1),
            r"divisible by 2\^depth = 4.*\(1, 6, 8, 8\)",
        ),
        (lambda: models.cnn((1, 6, 6), 2), r"larger images, got .* \(1, 6, 6\)"),
        (lambda: models.lenet((1, 6, 6), 2), r"larger images, got .* \(1, 6, 6\)"),
        (lambda: models.cnn((20,), 2), r"images of shape .*got .* \(20,\)"),
        (lambda: models.lenet((20,), 2), r"images of shape .*got .* \(20,\)"),
        (lambda: models.mlp((2,), 1, activation="rele"), "Did you mean 'relu'"),
    ],
)
def test_what_no_model_can_be_made_of_is_refused_by_name_and_value(make, message):
    refuses(message, make)


@pytest.mark.parametrize("hidden", ["32", 32, [4.5], [True], [0]])
def test_hidden_widths_that_are_no_list_of_whole_numbers_are_refused(unchecked, hidden):
    rule = "`hidden` must be a list of whole numbers of at least 1, got"
    assert refusal(models.mlp, (2,), 1, hidden=hidden) == f"{rule} {hidden!r}."


# The layers that have parameters, in the order in which they are made.
LAYERS = {
    "linear": ((2, 3), {"bias": True}, lambda: [nn.Linear(6, 4)]),
    "mlp": (
        (2, 3),
        {"hidden": (5, 7)},
        lambda: [nn.Linear(6, 5), nn.Linear(5, 7), nn.Linear(7, 4)],
    ),
    "cnn": (
        (2, 10, 10),
        {"width": 3},
        lambda: [
            nn.Conv2d(2, 3, 3),
            nn.Conv2d(3, 6, 3),
            nn.Linear(6, 48),  # 10, 8, 4, 2, 1 pixels on a side
            nn.Linear(48, 4),
        ],
    ),
    "lenet": (
        (1, 28, 28),
        {},
        lambda: [
            nn.Conv2d(1, 6, 5),
            nn.Conv2d(6, 16, 5),
            nn.Linear(400, 120),
            nn.Linear(120, 84),
            nn.Linear(84, 4),
        ],
    ),
    "unet3d": (
        (1, 8, 8, 8),
        {"width": 2, "depth": 2},
        lambda: [
            *(nn.Conv3d(1, 2, 3), nn.GroupNorm(2, 2)),  # down
            *(nn.Conv3d(2, 4, 3), nn.GroupNorm(4, 4)),  # inside: down
            *(nn.Conv3d(4, 8, 3), nn.GroupNorm(8, 8)),
            nn.ConvTranspose3d(8, 4, 2),
            *(nn.Conv3d(8, 4, 3), nn.GroupNorm(4, 4)),
            nn.Conv3d(4, 4, 1),  # the inner one's last layer
            nn.ConvTranspose3d(4, 2, 2),  # up
            *(nn.Conv3d(4, 2, 3), nn.GroupNorm(2, 2)),  # join
            nn.Conv3d(2, 4, 1),
        ],
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_row_holds_the_layers_in_order_from_body_to_head(name):
    shape, options, layers = LAYERS[name]
    module = models.build(lambda: models.MODELS[name](shape, 4, **options), seed=3)
    plain = models.build(lambda: nn.Sequential(*layers()), seed=3)
    if name == "linear":
        nn.init.zeros_(plain[0].weight)
        nn.init.zeros_(plain[0].bias)
    assert torch.equal(models.ravel(module), models.ravel(plain))
    assert models.layout(module).shapes == models.layout(plain).shapes
    assert {part.split(".")[0] for part in models.layout(module).names} <= {
        "body",
        "head",
    }
    if name != "linear":
        last = list(plain.children())[-1]
        mine = models.ravel(module)[models.columns(module, ["head"])]
        assert torch.equal(mine, models.ravel(last))


def test_the_norms_of_a_unet_have_names():
    module = models.build(lambda: models.unet3d((1, 8, 8, 8), 1, width=2), seed=0)
    norms = [m for m in module.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 5
    assert int(models.columns(module, ["norm"]).sum()) == sum(map(size, norms))


def test_a_diagonal_network_is_a_linear_map_of_products_that_begins_at_zero():
    module = models.build(lambda: models.diagonal((2, 3), 4, scale=0.5), 0)
    u, v = models.ravel(module).view(2, 4, 6)
    assert torch.equal(u, torch.full((4, 6), 2**0.5 * 0.5)) and not v.any()
    rng = torch.Generator().manual_seed(0)
    row = torch.randn(48, generator=rng)
    features = torch.randn(5, 2, 3, generator=rng)
    u, v = row.view(2, 4, 6)
    found = models.with_row(module, row)(features)
    torch.testing.assert_close(found, features.flatten(1) @ (u * v).T)
    refuses("`scale` must be greater than 0", models.diagonal, (3,), 1, scale=0.0)

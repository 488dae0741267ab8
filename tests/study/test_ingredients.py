from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie import models
from coterie.checks import InputError
from coterie.data.datasets import load
from coterie.data.splits import divide
from coterie.study.ingredients import RECIPES, Context, ingredients_of, is_from_truth
from support.recipes import precision, radius, sizes, weights

HALF = [[0.5, 0, 0.5, 0, 0, 0], [0, 1, 0, 0, 0, 0], *np.eye(6)[2:].tolist()]


def save_values(path, values) -> str:
    if path.suffix == ".csv":
        np.savetxt(path, np.array(values), delimiter=",")
    else:
        np.save(path, np.array(values))
    return str(path)


def test_sizes_are_the_training_samples(classification):
    assert sizes("samples", classification).tolist() == [7, 4, 9, 5, 8, 6]
    with pytest.raises(InputError, match="`sizes` must be one of samples"):
        sizes("sample", classification)


def test_weights_by_name_are_what_they_say(classification):
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    torch.testing.assert_close(weights("clusters", classification), same / 3)
    torch.testing.assert_close(
        weights("uniform", classification), torch.full((6, 6), 1 / 6)
    )
    torch.testing.assert_close(weights("alone", classification), torch.eye(6))


def test_biases_join_those_whose_optima_are_near():
    table = load("linear", clients=6, dimension=3, samples=8, variation=0.01)
    federation = divide(table, "natural", seed=0)
    near = weights("biases(1.0)", federation)
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    torch.testing.assert_close(near, (same / 3).to(near.dtype))
    torch.testing.assert_close(weights("biases(0)", federation), torch.eye(6).double())


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_weights_come_from_a_file(classification, tmp_path, suffix):
    name = save_values(tmp_path / f"w.{suffix}", HALF)
    torch.testing.assert_close(weights(name, classification), torch.tensor(HALF))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("cluster", "Did you mean 'clusters'"),
        ("", "`weights` must read like"),
        ("uniform(3)", r"uniform takes no numbers, got 'uniform\(3\)'"),
        ("biases(1)", "needs one number and a federation with known optima"),
        ("biases(x)", "must have numbers in its brackets"),
    ],
)
def test_wrong_weights_are_refused(classification, choice, message):
    with pytest.raises(InputError, match=message):
        weights(choice, classification)


def test_clusters_that_nobody_knows_are_refused(images):
    with pytest.raises(InputError, match="needs known clusters, but `images` has none"):
        weights("clusters", images)


@pytest.mark.parametrize("number", ["-1", "nan", "inf"])
def test_a_threshold_must_be_a_finite_number(number):
    federation = divide(load("linear", clients=2, samples=8), "natural", seed=0)
    with pytest.raises(InputError, match="`weights` must be"):
        weights(f"biases({number})", federation)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.eye(5), r"must have shape \(6, 6\), one row per client, got \(5, 5\)"),
        (np.ones(6), r"must have shape \(6, 6\)"),
        ([], r"must have shape \(6, 6\)"),
        (0.5 * np.eye(6), "every row of `weights` must sum to 1, but row 0"),
        (-np.eye(6), "`weights` must be non-negative, but row 0"),
        (np.eye(6) * np.nan, "`weights` must be finite, but row 0"),
    ],
)
def test_a_file_of_wrong_weights_is_refused(classification, tmp_path, values, message):
    with pytest.raises(InputError, match=message):
        weights(save_values(tmp_path / "w.csv", values), classification)


def test_a_cell_of_a_file_that_is_no_number_is_named_by_its_row(
    classification, tmp_path
):
    path = tmp_path / "w.csv"
    for text, message in (
        ("1,0\n\n0,x\n", "row 3, column 2 must be a number, got 'x'"),
        ("1,0\n0,1,0\n", "row 2 has 3 cells, but the first one has 2"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            weights(str(path), classification)


@pytest.mark.parametrize("suffix", ["csv", "npy"])
@pytest.mark.parametrize("content", [None, b"", b"client,weight\n1,2\n", b"\xff\x00"])
def test_an_unreadable_file_is_named(classification, tmp_path, suffix, content):
    path = tmp_path / f"w.{suffix}"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"`weights` .*\.$") as caught:
        weights(str(path), classification)
    assert ".." not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_precision_by_name_is_what_it_says(classification):
    assert precision("samples", classification).tolist() == [7, 4, 9, 5, 8, 6]
    assert precision("equal", classification).tolist() == [1] * 6
    assert precision("estimated", classification) is None


def test_precision_comes_from_a_file(classification, tmp_path):
    name = save_values(tmp_path / "p.csv", [1, 2, 3, 4, 5, 6])
    assert precision(name, classification).tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2], r"`precision` must have shape \(6,\), one entry per client"),
        ([1, 2, 3, 0, 5, 6], "`precision` must be positive, but entry 3 is 0"),
        ([1, 2, 3, np.inf, 5, 6], "`precision` must be finite, but row 3"),
    ],
)
def test_wrong_precisions_are_refused(classification, tmp_path, values, message):
    with pytest.raises(InputError, match=message):
        precision(save_values(tmp_path / "p.csv", values), classification)
    with pytest.raises(InputError, match="Did you mean 'samples'"):
        precision("sample", classification)


def test_radii_by_name_are_what_they_say(classification):
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    torch.testing.assert_close(radius("clusters", classification), 1.0 - same.float())
    table = load("linear", clients=6, dimension=3, samples=8, variation=0.1)
    federation = divide(table, "natural", seed=0)
    squared = (federation.optima[:, None] - federation.optima).square().sum(2)
    torch.testing.assert_close(radius("optima", federation), squared)


def test_radii_from_transport_depend_on_reference_cost_and_samples(classification):
    plain = radius("transport", classification)
    assert torch.equal(plain, plain.T)
    assert not plain.diagonal().any()
    assert torch.equal(radius("transport(100)", classification), plain)
    # Nobody has more than nine training samples.
    assert torch.equal(radius("transport(100, 9)", classification), plain)
    found = [
        radius(choice, classification)
        for choice in ("transport(7)", "transport(100, 5)", "cosine", "cosine(7, 5)")
    ]
    for other in (plain, *found):
        assert sum(torch.equal(other, known) for known in (plain, *found)) == 1
        assert (other + torch.eye(6) > 0).all()


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_radii_come_from_a_file_and_may_be_infinite(classification, tmp_path, suffix):
    values = np.full((6, 6), np.inf)
    values[0, 1] = values[1, 0] = 2.5
    np.fill_diagonal(values, 0)
    found = radius(save_values(tmp_path / f"r.{suffix}", values), classification)
    torch.testing.assert_close(found, torch.tensor(values, dtype=found.dtype))
    some = classification.select(torch.tensor([1, 0, 4]))
    here = radius(str(tmp_path / f"r.{suffix}"), some)
    assert here[0, 1] == 2.5
    assert here[0, 2] == np.inf


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("transports", "Did you mean 'transport'"),
        ("clusters(2)", r"clusters takes fewer numbers, got 'clusters\(2\)'"),
        ("transport(1, 2, 3)", "transport takes fewer numbers"),
        ("transport(2.5)", "transport takes whole numbers"),
        ("transport(0)", "`radius` must be at least 1, got 0"),
        ("transport(10, -1)", "`radius` must be at least 0, got -1"),
        ("optima", "`radius` optima needs known optima, but `classification` has none"),
    ],
)
def test_wrong_radii_are_refused(classification, choice, message):
    with pytest.raises(InputError, match=message):
        radius(choice, classification)


def test_radii_that_this_federation_cannot_have_are_refused(images, regression):
    with pytest.raises(InputError, match="`radius` clusters needs known clusters"):
        radius("clusters", images)
    with pytest.raises(InputError, match="needs classes, but the task of `regression`"):
        radius("cosine", regression)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((5, 5)), r"`radius` must have shape \(6, 6\)"),
        (np.triu(np.ones((6, 6)), 1), "must be symmetric, but between clients 0 and 1"),
        (
            -np.ones((6, 6)),
            "must be non-negative, but between clients 0 and 0 it is -1",
        ),
        (np.full((6, 6), np.nan), "must not be NaN, but between clients 0 and 0"),
        (np.ones((6, 6)), "must be 0 between a client and itself"),
    ],
)
def test_a_file_of_wrong_radii_is_refused(classification, tmp_path, values, message):
    with pytest.raises(InputError, match=message):
        radius(save_values(tmp_path / "r.csv", values), classification)


def test_positional_parameters_are_ingredients():
    def method(sizes, weights, *, lr=0.1):
        """Asks for two."""

    assert ingredients_of(method) == ["sizes", "weights"]
    assert set(ingredients_of(method)) <= set(RECIPES)


def test_an_ingredient_without_a_recipe_is_refused():
    def method(weather, *, lr=0.1):
        """Asks for what nobody makes."""

    with pytest.raises(InputError, match="the ingredient `weather` is not known"):
        ingredients_of(method)


def test_heads_and_matrices_are_named_by_modules(classification):
    module = models.build(lambda: models.mlp((12,), 2, hidden=(3,)), 0)
    context = Context(classification, models.layout(module), 0)

    def make(name, choice):
        return RECIPES[name][0](choice, context)

    assert make("head", "head").tolist() == [False] * 39 + [True] * 8
    with pytest.raises(InputError, match="nothing would be shared"):
        make("head", "head, body*")
    assert make("layers", "all").tolist() == [[0, 3, 12], [39, 2, 3]]
    assert make("layers", "body").tolist() == [[0, 3, 12]]
    with pytest.raises(InputError, match="no module of the model matches 'tail'"):
        make("head", "tail")
    assert not is_from_truth("head", "head, norm*") and not is_from_truth(
        "layers", "all"
    )

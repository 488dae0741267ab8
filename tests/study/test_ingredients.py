"""Claims about ingredients of methods: by name, by recipe and from files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from coterie import models
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.all_for_one import all_for_one
from coterie.checks import InputError
from coterie.collaboration.weights import interpolation, water_filling
from coterie.data.datasets import load
from coterie.data.splits import divide
from coterie.study.ingredients import RECIPES, Context, ingredients_of, is_from_truth
from support.oracles import begun
from support.recipes import biases, precision, radius, sizes, weights
from support.refusals import refuses

HALF = [[0.5, 0, 0.5, 0, 0, 0], [0, 1, 0, 0, 0, 0], *np.eye(6)[2:].tolist()]


def save_values(path, values) -> str:
    if path.suffix == ".csv":
        np.savetxt(path, np.array(values), delimiter=",")
    else:
        np.save(path, np.array(values))
    return str(path)


def linear(clients: int = 30, **options):
    """Clients whose best models are known."""
    table = load("linear", clients=clients, dimension=3, samples=8, **options)
    return divide(table, "natural", seed=0)


def test_sizes_are_the_training_samples(classification):
    assert sizes("samples", classification).tolist() == [7, 4, 9, 5, 8, 6]


def test_weights_by_name_are_what_they_say(classification):
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    assert_close(weights("clusters", classification), same / 3)
    assert_close(weights("uniform", classification), torch.full((6, 6), 1 / 6))
    assert_close(weights("alone", classification), torch.eye(6))


def test_biases_join_those_whose_optima_are_near():
    federation = linear(6, variation=0.01)
    near = weights("biases(1.0)", federation)
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    assert_close(near, (same / 3).to(near.dtype))
    assert_close(weights("biases(0)", federation), torch.eye(6).double())


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_weights_come_from_a_file(classification, tmp_path, suffix):
    name = save_values(tmp_path / f"w.{suffix}", HALF)
    assert_close(weights(name, classification), torch.tensor(HALF))


@pytest.mark.parametrize(
    ("recipe", "choice", "message"),
    [
        (sizes, "sample", "`sizes` must be one of samples"),
        (precision, "sample", "Did you mean 'samples'"),
        (weights, "cluster", "Did you mean 'clusters'"),
        (weights, "", "`weights` must read like"),
        (weights, "uniform(3)", r"uniform takes no numbers, got 'uniform\(3\)'"),
        (weights, "biases(1)", "needs one number and a federation with known optima"),
        (weights, "biases(x)", "must have numbers in its brackets"),
        (weights, "mixture", "mixture needs one number, got 'mixture'"),
        (weights, "mixture(2)", "`weights` must be at most 1, got 2"),
        (weights, "water_filling(1)", "needs one number and a federation with"),
        (biases, "optima", "`biases` optima needs known optima, but `classification`"),
        (biases, "clusters(1, 2)", "clusters takes one number at most"),
        (biases, "clusters(0)", "`biases` must be greater than 0"),
        (biases, "cluster", "Did you mean 'clusters'"),
        (radius, "transports", "Did you mean 'transport'"),
        (radius, "clusters(2)", r"clusters takes fewer numbers, got 'clusters\(2\)'"),
        (radius, "transport(1, 2, 3)", "transport takes fewer numbers"),
        (radius, "transport(2.5)", "transport takes whole numbers"),
        (radius, "transport(0)", "`radius` must be at least 1, got 0"),
        (radius, "transport(10, -1)", "`radius` must be at least 0, got -1"),
        (radius, "optima", "`radius` optima needs known optima, but .* has none"),
    ],
)
def test_wrong_recipes_are_refused(classification, recipe, choice, message):
    refuses(message, recipe, choice, classification)


def test_clusters_and_classes_that_nobody_knows_are_refused(images, regression):
    for name, recipe in (("weights", weights), ("biases", biases), ("radius", radius)):
        message = f"`{name}` clusters needs known clusters, but `images` has none"
        refuses(message, recipe, "clusters", images)
    refuses("needs classes, but the task of `regression`", radius, "cosine", regression)


@pytest.mark.parametrize("number", ["-1", "nan", "inf"])
def test_a_threshold_must_be_a_finite_number(number):
    refuses("`weights` must be", weights, f"biases({number})", linear(2))


def test_an_empty_volume_of_water_is_refused():
    refuses("`weights` must be greater than 0", weights, "water_filling(0)", linear())


ONES, SHAPE = np.ones((6, 6)), r"must have shape \(6, 6\)"
HALVES = r"every row of `weights` must sum to 1, but row 0 \(client 0\) sums to 0\.5\."


@pytest.mark.parametrize(
    ("recipe", "values", "message"),
    [
        (weights, np.eye(5), rf"`weights` {SHAPE}, one row per client, got \(5, 5\)"),
        (weights, np.ones(6), f"`weights` {SHAPE}"),
        (weights, [], f"`weights` {SHAPE}"),
        (weights, np.eye(6) / 2, HALVES),
        (weights, -np.eye(6), "`weights` must be non-negative, but row 0"),
        (weights, np.eye(6) * np.nan, "`weights` must be finite, but row 0"),
        (precision, [1, 2], r"`precision` must have shape \(6,\), one entry per cl"),
        (precision, [1, 2, 3, 0, 5, 6], "`precision` must be positive, but entry 3 is"),
        (precision, [1, 2, 3, np.inf, 5, 6], "`precision` must be finite, but row 3"),
        (radius, np.zeros((5, 5)), f"`radius` {SHAPE}"),
        (radius, np.triu(ONES, 1), "be symmetric, but between clients 0 and 1"),
        (radius, -ONES, "be non-negative, but between clients 0 and 0 it is -1"),
        (radius, ONES * np.nan, "must not be NaN, but between clients 0 and 0"),
        (radius, ONES, "must be 0 between a client and itself"),
    ],
)
def test_a_file_of_wrong_values_is_refused(
    classification, tmp_path, recipe, values, message
):
    refuses(message, recipe, save_values(tmp_path / "v.csv", values), classification)


def test_a_cell_of_a_file_that_is_no_number_is_named_by_row(classification, tmp_path):
    path = tmp_path / "w.csv"
    for text, message in (
        ("1,0\n\n0,x\n", "row 3, column 2 must be a number, got 'x'"),
        ("1,0\n0,1,0\n", "row 2 has 3 cells, but the first one has 2"),
    ):
        path.write_text(text)
        refuses(message, weights, str(path), classification)


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


def test_mixtures_and_water_filling_come_from_a_study():
    federation = linear(variation=0.5)
    assert_close(weights("mixture(0.3)", federation), interpolation(0.3, 30))
    a = biases("optima", federation)
    assert_close(weights("water_filling(0.1)", federation), water_filling(a, 0.1))


def test_both_methods_take_every_kind_of_weights():
    federation = linear(variation=0.5)
    x = torch.zeros(30, 3, dtype=torch.float64)
    for choice in ("mixture(0.5)", "water_filling(1)", "biases(2)", "clusters"):
        lam = weights(choice, federation)
        for method in (all_for_one, all_for_all):
            assert begun(method(lam), x).x.shape == x.shape


def test_biases_are_gaps_between_known_optima():
    federation = linear(variation=0.5)
    best = federation.optima
    found = biases("optima", federation)
    for i, k in ((0, 1), (4, 28), (7, 7)):
        expected = float((best[i] - best[k]) @ (best[i] - best[k])) / 2
        assert float(found[i, k]) == pytest.approx(expected)
    assert_close(biases("optima(2)", federation), 2 * found)


def test_clients_with_the_same_optimum_have_no_bias_at_all():
    federation = linear(variation=0.0)
    same = federation.clusters[:, None] == federation.clusters
    assert (biases("optima", federation)[same] == 0).all()
    assert_close(weights("biases(0)", federation), (same / 15).double())
    assert torch.equal(biases("clusters", federation), (~same).float())
    assert torch.equal(biases("clusters(0.5)", federation), 0.5 * (~same).float())


def test_biases_come_from_a_file(classification, tmp_path):
    values = np.abs(np.arange(6)[:, None] - np.arange(6)) / 10
    np.save(tmp_path / "b.npy", values)
    found = biases(str(tmp_path / "b.npy"), classification)
    assert_close(found, torch.tensor(values, dtype=torch.float32))
    some = classification.select(torch.tensor([1, 4]))
    assert_close(biases(str(tmp_path / "b.npy"), some), found[[1, 4]][:, [1, 4]])


def test_precision_by_name_is_what_it_says(classification):
    assert precision("samples", classification).tolist() == [7, 4, 9, 5, 8, 6]
    assert precision("equal", classification).tolist() == [1] * 6
    assert precision("estimated", classification) is None


def test_precision_comes_from_a_file(classification, tmp_path):
    name = save_values(tmp_path / "p.csv", [1, 2, 3, 4, 5, 6])
    assert precision(name, classification).tolist() == [1, 2, 3, 4, 5, 6]


def test_radii_by_name_are_what_they_say(classification):
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    assert_close(radius("clusters", classification), 1.0 - same.float())
    federation = linear(6, variation=0.1)
    squared = (federation.optima[:, None] - federation.optima).square().sum(2)
    assert_close(radius("optima", federation), squared)


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
    assert_close(found, torch.tensor(values, dtype=found.dtype))
    some = classification.select(torch.tensor([1, 0, 4]))
    here = radius(str(tmp_path / f"r.{suffix}"), some)
    assert here[0, 1] == 2.5
    assert here[0, 2] == np.inf


def test_positional_parameters_are_ingredients():
    def method(sizes, weights, *, lr=0.1):
        """Asks for two."""

    assert ingredients_of(method) == ["sizes", "weights"]
    assert set(ingredients_of(method)) <= set(RECIPES)


def test_an_ingredient_without_a_recipe_is_refused():
    def method(weather, *, lr=0.1):
        """Asks for what nobody makes."""

    refuses("the ingredient `weather` is not known", ingredients_of, method)


def test_heads_and_matrices_are_named_by_modules(classification):
    module = models.build(lambda: models.mlp((12,), 2, hidden=(3,)), 0)
    context = Context(classification, models.layout(module), 0)

    def make(name, choice):
        return RECIPES[name][0](choice, context)

    assert make("head", "head").tolist() == [False] * 39 + [True] * 8
    refuses("nothing would be shared", make, "head", "head, body*")
    assert make("layers", "all").tolist() == [[0, 3, 12], [39, 2, 3]]
    assert make("layers", "body").tolist() == [[0, 3, 12]]
    refuses("no module of the model matches 'tail'", make, "head", "tail")
    assert not is_from_truth("head", "head, norm*") and not is_from_truth(
        "layers", "all"
    )

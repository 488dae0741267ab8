"""Claims about weights and biases of All-for-all that come from a study."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.all_for_one import all_for_one
from coterie.checks import InputError
from coterie.collaboration import weights
from coterie.data.datasets import load
from coterie.data.splits import divide
from support.gradient_oracles import REAL
from support.oracles import begun
from support.recipes import biases
from support.recipes import weights as weights_of


def linear(**options):
    table = load("linear", clients=30, dimension=3, samples=8, **options)
    return divide(table, "natural", seed=0)


def test_mixtures_and_water_filling_come_from_a_study():
    federation = linear(variation=0.5)
    assert_close(weights_of("mixture(0.3)", federation), weights.interpolation(0.3, 30))
    a = biases("optima", federation)
    assert_close(
        weights_of("water_filling(0.1)", federation), weights.water_filling(a, 0.1)
    )


def test_both_methods_take_every_kind_of_weights():
    federation = linear(variation=0.5)
    x = torch.zeros(30, 3, dtype=REAL)
    for choice in ("mixture(0.5)", "water_filling(1)", "biases(2)", "clusters"):
        lam = weights_of(choice, federation)
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
    assert_close(weights_of("biases(0)", federation), (same / 15).to(REAL))
    assert torch.equal(biases("clusters", federation), (~same).float())
    assert torch.equal(biases("clusters(0.5)", federation), 0.5 * (~same).float())


def test_biases_come_from_a_file(classification, tmp_path):
    values = np.abs(np.arange(6)[:, None] - np.arange(6)) / 10
    np.save(tmp_path / "b.npy", values)
    found = biases(str(tmp_path / "b.npy"), classification)
    assert_close(found, torch.tensor(values, dtype=torch.float32))
    some = classification.select(torch.tensor([1, 4]))
    assert_close(biases(str(tmp_path / "b.npy"), some), found[[1, 4]][:, [1, 4]])


@pytest.mark.parametrize(
    ("recipe", "choice", "message"),
    [
        (weights_of, "mixture", "mixture needs one number, got 'mixture'"),
        (weights_of, "mixture(2)", "`weights` must be at most 1, got 2"),
        (weights_of, "water_filling(1)", "needs one number and a federation with"),
        (biases, "optima", "`biases` optima needs known optima, but `classification`"),
        (biases, "clusters(1, 2)", "clusters takes one number at most"),
        (biases, "clusters(0)", "`biases` must be greater than 0"),
        (biases, "cluster", "Did you mean 'clusters'"),
    ],
)
def test_wrong_recipes_are_refused(classification, recipe, choice, message):
    with pytest.raises(InputError, match=message):
        recipe(choice, classification)


def test_an_empty_volume_of_water_is_refused():
    with pytest.raises(InputError, match="`weights` must be greater than 0"):
        weights_of("water_filling(0)", linear())


def test_clusters_that_nobody_knows_have_no_biases(images):
    with pytest.raises(InputError, match="`biases` clusters needs known clusters"):
        biases("clusters", images)

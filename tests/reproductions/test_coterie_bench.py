"""The bench of structures: families are as they say, and claims notice misses."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.checks import InputError
from coterie.cli import items_of
from coterie.data import load

STRUCTURES = items_of("coterie")["structures"]
bench = sys.modules["reproduce_coterie.bench"]
structures = sys.modules["reproduce_coterie.structures"]
aims = sys.modules["reproduce_coterie.aims"]
others = sys.modules["reproduce_coterie.others"]
FAMILIES = structures.FAMILIES
PARTS = ("train", "validation", "test")


def federation(name: str, seed: int = 3):
    return structures.federation_of(FAMILIES[name], load("digits"), seed)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_seed_names_a_federation_and_another_seed_another(name):
    first, again, other = (federation(name, seed) for seed in (3, 3, 4))
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.targets, again.targets)
    for part in PARTS:
        pairs = zip(first.part(part), again.part(part), strict=True)
        assert all(torch.equal(one, two) for one, two in pairs)
    assert first.features.shape != other.features.shape or not torch.equal(
        first.features, other.features
    )
    assert torch.isfinite(first.features).all()


def test_generated_families_draw_from_streams_of_their_own():
    streams = [f.stream for f in FAMILIES.values() if f.source is not None]
    assert len(streams) == 10 and len(set(streams)) == 10


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("regression, all different", [1] * 24),
        ("regression, four validation samples", [1] * 24),
        ("regression, three groups", [8, 8, 8]),
        ("regression, one outlier", [23, 1]),
        ("two classes, two groups", [20, 20]),
        ("tiny model, two groups", [10, 10]),
        ("late groups", [12, 12]),
        ("two groups, 20 % take part", [10, 10]),
        ("two groups, one of garbage", [9, 10, 1]),
        ("two groups, sizes 1 to 100", [8, 8]),
        ("two groups, one step a round", [10, 10]),
        ("ten pairs", [2] * 10),
        ("soft groups", None),
        ("half of clients noisy", None),
        ("Dirichlet(0.4) of words", None),
    ],
)
def test_families_have_the_groups_that_they_name_or_none(name, sizes):
    found = federation(name).clusters
    assert found is sizes is None or torch.bincount(found).tolist() == sizes


def rows_of(fed, client: int, part: str = "train") -> torch.Tensor:
    return fed.part(part).rows(torch.tensor([client]))[0][0]


def least_squares(fed, client: int) -> np.ndarray:
    """The best linear model of all that a client has."""
    rows = torch.cat([rows_of(fed, client, part) for part in PARTS])
    return np.linalg.lstsq(fed.features[rows], fed.targets[rows], rcond=None)[0]


def test_linear_models_are_equal_within_groups_only():
    fed = federation("regression, three groups")
    models = np.array([least_squares(fed, i) for i in range(6)])
    apart = np.linalg.norm(models[:, None] - models, axis=-1)
    # Noise 0.5 and 140 samples leave 0.5 sqrt(2 * 10 / 140) = 0.19 between equal ones.
    assert max(apart[i, i + 3] for i in range(3)) < 0.4
    assert apart[:3, :3][~np.eye(3, dtype=bool)].min() > 0.6


def test_soft_groups_lie_on_a_line_between_two_models():
    fed = federation("soft groups")
    models = np.array([least_squares(fed, i) for i in range(24)])
    spread = np.linalg.svd(models - models.mean(0), compute_uv=False) ** 2
    assert spread[0] > 3 * spread[1:].max()


def test_four_validation_samples_are_four_and_the_rest_is_as_without():
    fed, other = map(
        federation, ("regression, four validation samples", "regression, all different")
    )
    assert set(fed.validation.size.tolist()) == {4}
    assert torch.equal(fed.train.size, other.train.size)
    assert set(fed.train.size.tolist()) == {30}


def test_sizes_differ_a_hundredfold():
    fed = federation("two groups, sizes 1 to 100")
    sizes = sum(fed.part(part).size for part in PARTS)
    assert sizes.max() >= 100 * sizes.min()
    assert torch.equal(sizes[0::2], sizes[1::2])  # both groups have the same


def test_garbage_is_finite_a_thousand_times_larger_and_of_one_client():
    fed = federation("two groups, one of garbage")
    largest = [float(fed.features[rows_of(fed, i)].abs().max()) for i in range(20)]
    assert largest[0] == pytest.approx(1000) and max(largest[1:]) == pytest.approx(1)


def test_late_groups_differ_in_small_features_only():
    fed = federation("late groups")
    x, y = fed.features, fed.targets
    owner = torch.empty(len(y), dtype=torch.long)
    for part in PARTS:
        for i in range(24):
            owner[rows_of(fed, i, part)] = i
    second = owner % 2 == 1
    for group in (second, ~second):
        pair = x[group & (y >= 2)].mean(0) - x[group & (y < 2)].mean(0)
        assert pair[:5].min() > 1.8 and pair[5:].abs().max() < 0.05
    which = [
        x[g & (y % 2 == 1)].mean(0) - x[g & (y % 2 == 0)].mean(0)
        for g in (second, ~second)
    ]
    assert (which[0][5:] < -0.09).all() and (which[1][5:] > 0.09).all()


def test_words_are_sparse_and_labels_skewed():
    fed = federation("Dirichlet(0.4) of words")
    assert fed.features.shape[1] == 300
    assert float((fed.features > 0).float().mean()) < 0.15
    shares = []
    for i in range(20):
        labels = fed.targets[rows_of(fed, i)]
        shares.append(float(torch.bincount(labels, minlength=5).max() / len(labels)))
    assert np.mean(shares) > 0.5  # 0.2 where labels are not skewed


def test_a_tiny_model_has_ten_parameters():
    fed = federation("tiny model, two groups")
    module = bench.MODELS["logistic"](tuple(fed.features.shape[1:]), fed.outputs)
    assert sum(p.numel() for p in module.parameters()) == 10


def test_losses_without_gradients_count_as_a_third():
    fed = federation("tiny model, two groups")
    training = structures.Training("logistic", 0.1, rounds=3, steps=2)
    runs = {
        n: bench.course(bench.QUICK[n], fed, 0.1, 0, training)
        for n in ("local", "ifca (told k)")
    }
    alone, ifca = runs.values()
    assert alone.gradients.tolist() == [16, 32, 48]
    # Two models on 20 training samples in a round, and in the first ten starts of two.
    looks = np.array([22, 24, 26]) * 20
    np.testing.assert_allclose(ifca.gradients, alone.gradients + looks / 3)


def test_a_group_of_whom_nobody_takes_part_keeps_its_model():
    fed = federation("tiny model, two groups")
    training = structures.Training(
        "logistic", 0.1, rounds=8, steps=2, participation=0.05
    )
    found = bench.course(bench.QUICK["oracle"], fed, 0.1, 0, training)
    assert found.test[-1, 0::2].mean() > 0.55 and found.test[-1, 1::2].mean() > 0.55


def test_r2_is_cut_at_minus_one_also_where_a_model_is_not_finite():
    fed = federation("regression, three groups")
    training = structures.Training("linear", 0.02, rounds=1, steps=1)
    wild = bench.course(bench.QUICK["local"], fed, 1e30, 0, training._replace(rounds=9))
    assert (wild.test[-1] == -1).all()
    mild = bench.course(bench.QUICK["local"], fed, 0.02, 0, training)
    assert (mild.test[-1] > -1).all()


def table_of(spread: float = 0.0, **changes: float) -> pd.DataFrame:
    """Runs that meet all aims, but for what changes, of one method in all families.

    Scores differ from one seed to the next in the same way for all methods, and what
    changes by `spread` more.
    """
    methods = ("local", "fedavg", "fine-tuned", "ditto", "coteries", "oracle")
    costs = {"gradients": 2.0, "bytes": 2.0, "time": 2.0, "lose": 0.0}
    rows = []
    for name in FAMILIES:
        for seed, luck in enumerate((-1, 0, 1)):
            for method in methods:
                ours = method == "coteries"
                score = 60.0 if method == "local" else 80.0
                entry = {"score": score + luck, **costs}
                if ours and name == changes.get("family"):
                    (key, value), *_ = (c for c in changes.items() if c[0] != "family")
                    entry[key] = value + luck * (spread + (key == "score"))
                at = {"at_gradients": 70.0, "at_bytes": 70.0}
                place = {"data": "any", "family": name, "seed": seed, "method": method}
                rows.append({**place, **entry, **at})
    return pd.DataFrame(rows)


def missed(table: pd.DataFrame) -> list[str]:
    return [claim.what for claim in aims.claims(table) if claim.agrees is False]


def test_a_method_that_is_as_good_as_the_oracle_misses_nothing():
    found = aims.claims(table_of())
    assert sum(claim.agrees is True for claim in found) == 9
    assert missed(table_of()) == []


@pytest.mark.parametrize(
    ("family", "change", "what"),
    [
        ("all alike", {"gradients": 2.6}, ["gradients, times local's"]),
        ("soft groups", {"bytes": 3.1}, ["bytes, times FedAvg's"]),
        ("gradual drift", {"lose": 6.0}, ["clients that lose, %"]),
        ("regression, all different", {"score": 58.0}, ["points below local"]),
        ("ten pairs", {"score": 77.0}, ["way from local to oracle, %"]),
        ("late groups", {"score": 77.0}, []),
        ("late groups", {"score": 75.0}, ["the same of hard groups, %"]),
        ("noisy labels", {"score": 78.0}, ["points below FedAvg, all alike or noisy"]),
        (
            "Dirichlet(0.4) of words",
            {"score": 79.0},
            [
                "points below fine-tuned FedAvg, skewed labels",
                "points below Ditto, skewed labels",
            ],
        ),
    ],
)
def test_claims_notice_a_method_that_misses(family, change, what):
    assert missed(table_of(family=family, **change)) == what


@pytest.mark.parametrize(
    ("score", "holds", "note"),
    [
        # The difference is 1 apart: t(2) = 4.303 times 1 / sqrt(3) around its mean.
        (58.0, None, "not sure: any, soft groups (2.00, -0.48 to 4.48)"),
        (56.0, False, "missed: any, soft groups (4.00, 1.52 to 6.48)"),
        (59.5, True, "at worst any, soft groups (0.50, -1.98 to 2.98)"),
    ],
)
def test_an_aim_is_missed_only_if_the_whole_interval_over_seeds_misses_it(
    score, holds, note
):
    table = table_of(1.0, family="soft groups", score=score)
    claim = next(c for c in aims.claims(table) if c.what == "points below local")
    assert claim.agrees is holds
    assert claim.note == note


def test_one_seed_has_no_interval():
    table = table_of()
    notes = [claim.note for claim in aims.claims(table[table["seed"] == 0])]
    assert any("one seed" in note for note in notes)
    assert not any("nan" in note for note in notes)


def test_the_interval_of_a_ratio_is_zero_where_it_is_the_same_for_all_seeds():
    index = pd.MultiIndex.from_product(
        [["any"], ["late groups"], [0, 1, 2]], names=["data", "family", "seed"]
    )
    bottom = pd.Series([1.0, 2.0, 4.0], index)
    found = aims.with_interval(3 * bottom, bottom)
    assert found["mean"].tolist() == [3.0]
    assert found["half"].tolist() == pytest.approx([0.0])


def test_the_bench_runs_and_judges_one_small_family(tmp_path):
    file = tmp_path / "runs.csv"
    given = ["data=generated", "families=tiny", "seeds=1", "first=0", "processes=1"]
    claims = STRUCTURES([*given, f"to={file}"])
    runs = pd.read_csv(file)
    assert set(runs["method"]) == set(bench.QUICK)
    assert claims[0].what == "generated, tiny model, two groups"
    score = runs.set_index("method")["score"]
    assert score["oracle"] > score["local"] + 3


def test_recorded_seeds_are_apart_from_those_of_design_and_the_default_is_fresh():
    file = Path(bench.__file__).parent / "results" / "structures.csv"
    seeds = pd.read_csv(file)["seed"]
    assert seeds.min() >= 1000  # methods are designed below
    assert seeds.max() < bench.FIRST


@pytest.mark.parametrize(
    "given", [["families=nothing"], ["data=digits", "model=cnn"], ["data=faces"]]
)
def test_settings_that_cannot_be_are_refused(given):
    with pytest.raises(InputError, match=r"families|cnn|data"):
        STRUCTURES(given)


def test_models_among_which_clients_choose_begin_as_local_training_and_fedavg():
    # Whole batches, so that both trainings see the same samples.
    training = structures.Training("logistic", rounds=1, steps=3, batch=0)
    place = federation("all alike"), 0.3, 3, training
    found = sys.modules["reproduce_coterie.choices"].finals(*place)
    local, fedavg = (
        100 * bench.course(bench.QUICK[name], *place).test[-1].mean()
        for name in ("local", "fedavg")
    )
    own, group, _, tuned = found.each
    assert own == pytest.approx(local) and group == pytest.approx(fedavg)
    # After one round the offset is all that local steps from the same model added.
    assert tuned == pytest.approx(local)
    assert found.chosen == pytest.approx(fedavg)


# Other methods


def test_a_tuned_method_is_the_run_of_the_best_validation_score(monkeypatch):
    """Not that of the best test score."""

    def run(make, federation, lr, seed, training):
        none = np.zeros(1)
        return bench.Course(np.full((1, 2), lr), -abs(lr - 2), none, none, 0.0, none)

    monkeypatch.setattr(others, "course", run)
    trials = [others.Trial(None, factor) for factor in (1.0, 4.0, 9.0)]
    found, factor = others.tuned(trials, None, 0.5, 0, structures.AS_USUAL)
    assert factor == 4 and float(found.test.max()) == 2


def test_other_methods_run_on_a_family_with_their_step_sizes(monkeypatch, tmp_path):
    family = "two classes, two groups"
    few = ("local", "fedavg", "FedAdam", "fedbabu", "fedbn")
    methods = {name: others.METHODS[name] for name in few}
    monkeypatch.setattr(others, "METHODS", methods)
    monkeypatch.setattr(others, "PLACES", {bench.GENERATED: (family,)})
    given = ["seeds=1", "first=3", f"to={tmp_path / 'runs.csv'}"]
    found = items_of("coterie")["others"](given)
    table = pd.read_csv(tmp_path / "runs.csv")
    assert [claim.agrees for claim in found] == [None] * 5
    assert table["method"].tolist() == list(few)
    assert table["factor"].isin([round(f, 4) for f in bench.FACTORS]).all()
    assert float(found[0].ours) == pytest.approx(table["score"][0], abs=0.051)


def test_families_of_other_methods_have_a_head_and_a_body():
    for data, families in others.PLACES.items():
        for name in families:
            training = FAMILIES[name].training
            assert (FAMILIES[name].source is not None) == (data == bench.GENERATED)
            assert (training.model or "mlp") == "mlp"
    with pytest.raises(InputError, match="`families` must be part of some name, got"):
        items_of("coterie")["others"](["families=nothing"])


def test_the_setting_methods_takes_a_part_of_a_name_and_refuses_what_names_nothing():
    slow = set(bench.SLOW)
    assert set(bench._makers("quick")) == set(bench.QUICK)
    assert set(bench._makers("all")) == set(bench.QUICK) | slow
    found = set(bench._makers("neighbours")) - set(bench.QUICK)
    assert found == {"neighbours (of four)", "neighbours (all)"}
    with pytest.raises(InputError, match=r"`methods` must be quick.*got 'nobody'"):
        bench._makers("nobody")

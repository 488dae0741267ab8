from __future__ import annotations

import itertools
import re
import sys
from io import StringIO

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from coterie.checks import InputError
from coterie.cli import Claim, reproductions
from coterie.cli.reproductions import (
    items_of,
    long_items,
    papers,
    reproduce_items,
    source_of,
)
from coterie.data.datasets import load
from coterie.data.splits import divide
from coterie.study.config import read_study
from coterie.study.search import settings_of

ROOT = papers().parent


def test_every_paper_lists_items_with_a_first_line():
    for path in papers().glob("*/items.py"):
        for name, item in items_of(path.parent.name).items():
            assert item.__doc__, f"{path.parent.name} {name}"


def test_figure_3_has_means_by_size(tmp_path, monkeypatch):
    """Two clients of 1 and 3 samples, of two seeds."""
    monkeypatch.chdir(tmp_path)
    items_of("philippenko2025")
    items = sys.modules["reproduce_philippenko2025"]
    keys = [(s, c, r) for s in (0, 1) for c in (0, 1) for r in (0, 1, 2)]
    rows = pd.DataFrame(keys, columns=["seed", "client", "round"])
    rows["algorithm"], rows["test_loss"] = "FedAvg", 1.0
    rows["test_accuracy"] = 0.4 + 0.1 * rows["client"] * rows["round"]
    clients = rows[["seed", "client"]].drop_duplicates().assign(train=[1, 3, 1, 3])
    drawn = []
    monkeypatch.setattr(items, "draw_panels", lambda path, panels: drawn.append(panels))
    items.draw_training("heart", rows, clients)
    ((losses, accuracies),) = drawn
    assert losses.log_y and not accuracies.log_y
    assert losses.lines[0][:3] == ("FedAvg", [1, 2], [1.0, 1.0])
    assert accuracies.lines[0].y == pytest.approx([0.4 + 0.075, 0.4 + 0.15])


def test_figure_2_has_means_over_seeds_of_every_method():
    items_of("philippenko2025")
    items = sys.modules["reproduce_philippenko2025"]
    keys = [(name, s, t) for name in ("b", "a") for s in (0, 1) for t in (0, 10)]
    rows = pd.DataFrame(keys, columns=["algorithm", "seed", "round"])
    rows["error"] = rows["seed"] - 0.1 * rows["round"]
    panel = items.panel_of_figure_2(2, rows)
    assert [line.name for line in panel.lines] == ["b", "a"]
    assert panel.lines[0].x == [0, 10] and panel.lines[0].y == [0.5, -0.5]


def test_a_distance_of_zero_counts_as_the_least_that_numbers_can_show():
    items_of("philippenko2025")
    items = sys.modules["reproduce_philippenko2025"]
    keys = [("a", 0, t, c) for t in (1, 2) for c in (0, 1)]
    rows = pd.DataFrame(keys, columns=["algorithm", "seed", "round", "client"])
    rows["distance"] = [0.0, 0.2, 0.0, 0.0]
    assert items.log_distance(rows)["error"].tolist() == pytest.approx([-1.0, -32.0])


def test_table_s2_leaves_out_the_last_client_and_judges_test_accuracies():
    items_of("philippenko2025")
    items = sys.modules["reproduce_philippenko2025"]
    keys = [(m, c) for m in ("Local", "FedAvg", "Ditto") for c in range(3)]
    rows = pd.DataFrame(keys, columns=["algorithm", "client"]).assign(round=1)
    # Of .5 and .66, the deviation of a population is .08; published are 8.3 and 5.5.
    rows["test_accuracy"] = rows["client"].map({0: 0.5, 1: 0.66, 2: 0.0})
    rows["train_accuracy"] = 1.0
    local, fedavg, ditto = items.table_s2_claims("heart", rows)
    assert local.ours == "0.0, 8.0" and local.published == "25.7, 8.3"
    assert local.agrees and fedavg.agrees and ditto.agrees is None
    rows.loc[rows["client"] == 1, "test_accuracy"] = 0.8
    local, _, _ = items.table_s2_claims("heart", rows)
    assert local.ours == "0.0, 15.0" and not local.agrees
    # Two coins have a deviation of 0 or a half.
    low, high = items.deviations_of_samples(np.array([0.5, 0.5]), 1)
    assert (low, high) == (0.0, 50.0)


def test_published_training_deviations_are_those_of_nine_times_five_samples():
    """Only deviations of a population of nine fifths are possible, and all are."""
    items_of("philippenko2025")
    expected = sys.modules["reproduce_philippenko2025"].EXPECTED
    every = np.array(list(itertools.combinations_with_replacement(range(6), 9))) / 5
    for method, mean in expected["table2_train"]["heart"].items():
        deviation = expected["table_s2"]["heart"][method][0]
        fits = every[abs(100 * every.mean(axis=1) - mean) <= 0.05]
        population, sample = (100 * fits.std(axis=1, ddof=k) for k in (0, 1))
        assert (abs(population - deviation) <= 0.05).any(), method
        assert not (abs(sample - deviation) <= 0.05).any(), method


def test_one_seed_judges_nothing():
    one, two = pd.Series([3.0]), pd.Series([3.0, 5.0])
    assert reproductions.lead("a above b", 2.0, one).agrees is None
    assert reproductions.lead("a above b", 2.0, two).ours == "+4.0±1.0"
    assert reproductions.lead("a above b", 2.0, two).agrees
    items_of("collins2021")
    items = sys.modules["reproduce_collins2021"]
    methods = [items.ONE, *items.PERSONAL]
    rows = pd.DataFrame([(m, s) for m in methods for s in (0, 1)])
    rows = rows.set_axis(["algorithm", "seed"], axis=1).assign(worst_tenth=0.0)
    rows["test_accuracy"] = 0.5 * (rows["algorithm"] != items.ONE)
    orders = [c.agrees for c in items.judge("mnist", rows) if "above" in c.what]
    assert orders == [True] * len(items.PERSONAL)
    alone = items.judge("mnist", rows[rows["seed"] == 0])
    assert {claim.agrees for claim in alone} == {None}


def test_numbers_that_a_paper_does_not_print_are_called_references():
    assert source_of("even2024", "chapter1") == "published"  # Table 1.1
    assert source_of("even2024", "chapter9") == "reference"  # no experiments
    assert source_of("even2022", "fig1a") == "reference"
    assert source_of("erickson2025", "table1a") == "published"
    assert source_of("coterie", "plans") == "reference"  # what `coterie plan` says
    for path in papers().glob("*/items.py"):
        items = items_of(path.parent.name)
        named = vars(sys.modules[f"reproduce_{path.parent.name}"]).get("REFERENCES")
        assert named is None or named <= set(items)
    # Tables have the same heading.
    for path in (papers() / "even2024" / "results").glob("*.csv"):
        heading = path.read_text().split(",")[1]
        assert heading == source_of("even2024", path.stem)


def test_all_papers_run_what_is_not_long_and_go_on_after_a_disagreement(monkeypatch):
    ran, file = [], StringIO()
    console = Console(file=file, width=200)

    def item(name, agrees=True):
        def run(overrides):
            ran.append(name)
            if agrees is None:
                raise InputError("missing [data] files.")
            return [Claim("a", "1", "1", agrees)]

        return run

    made = {"first": item("first", None), "long": item("long"), "last": item("last")}
    of = {path.parent.name: {} for path in papers().glob("*/items.py")}
    of["erickson2025"] = made
    of["even2024"] = {"wrong": item("wrong", False), "right": item("right")}
    monkeypatch.setattr(reproductions, "items_of", of.__getitem__)
    monkeypatch.setattr(reproductions, "long_items", lambda paper: frozenset({"long"}))
    assert not reproduce_items("all", "", [], console)
    assert ran == ["first", "last", "wrong", "right"]
    assert "erickson2025 long: not run, because it is long." in file.getvalue()
    assert "erickson2025 first: not run: missing [data] files." in file.getvalue()
    of["even2024"].pop("wrong")
    made.pop("first")
    assert reproduce_items("all", "", [], console)
    assert reproduce_items("even2024", "all", [], console)


def test_long_items_exist_and_most_items_are_short():
    every = {path.parent.name for path in papers().glob("*/items.py")}
    found = {name: (items_of(name), long_items(name)) for name in every}
    assert all(long <= set(items) for items, long in found.values())
    assert sum(len(long) for _, long in found.values()) < 20
    assert not long_items("even2024")


def test_figure_1_agrees_with_every_published_statement():
    claims = items_of("philippenko2025")["fig1"]([])
    assert claims and all(claim.agrees for claim in claims)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "heart"])
def test_recorded_table_2_has_three_seeds_of_every_method(name):
    table = pd.read_csv(papers() / "philippenko2025" / "results" / f"table2_{name}.csv")
    assert set(table["seed"]) == {127, 496, 1729}
    assert (table.groupby("algorithm").size() == 3).all()
    assert table["test_accuracy"].between(0, 1).all()


# Of the environment.
VARIABLES = {"COTERIE_DATA", "COTERIE_PATIENCE", "OMP_NUM_THREADS"}
VARIABLES |= {"ATEN_CPU_CAPABILITY", "MKL_CBWR", "OPENBLAS_CORETYPE"}
VARIABLES |= {"TYPE_CHECKING"}  # of Python
VARIABLES |= {"MLFLOW_ALLOW_FILE_STORE", "MLFLOW_TRACKING_URI", "WANDB_MODE"}


def test_no_document_has_a_place_still_to_be_filled_in():
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *papers().rglob("*.md"),
    ]:
        found = re.findall(r"\b[A-Z]{3,}_[A-Z]{3,}(?:_[A-Z]+)*\b", path.read_text())
        assert set(found) <= VARIABLES, f"{path}: {found}"


def of_erickson(name: str):
    """A function or constant of the items of Erickson and Johansson."""
    return items_of("erickson2025")["table1a"].__globals__[name]


@pytest.mark.parametrize("name", ["table1a", "table1b", "mnist"])
def test_studies_of_erickson_give_all_tuned_methods_the_same_number_of_trials(name):
    study = read_study(papers() / "erickson2025" / f"{name}.toml")
    assert study.tune is not None
    for entry in study.algorithms:
        if entry.tune:
            trials = settings_of(study.tune, entry.tune, entry.options, seed=0)
            assert len(trials) == study.tune.trials, entry.label
    labels = {entry.label for entry in study.algorithms}
    published = of_erickson("EXPECTED").get(name, {})
    assert labels >= set(published.get("error", published))


def test_local_and_global_ridge_leave_no_gradient():
    table = load("linear_thirds", clients=6, dimension=4, smallest=6, largest=9)
    federation = divide(table, "natural", seed=0)
    models = of_erickson("closed_forms")(federation)
    penalty = 2 * of_erickson("RIDGE")
    total, samples = torch.zeros(4, dtype=torch.float64), 0
    for i in range(6):
        mine = federation.train.rows(torch.tensor([i]))[0][0]
        x, y = federation.features[mine], federation.targets[mine]
        for label, size in (("alone", len(y)), ("global", 1)):
            w = models[label][i]
            gradient = 2 * x.T @ (x @ w - y) / size
            if label == "global":
                total += gradient
                continue
            # Rounding of a solution whose entries are near 1.
            assert (gradient + penalty * w).abs().max() < 1e-11
        samples += len(y)
    assert (total / samples + penalty * models["global"][0]).abs().max() < 1e-11


def test_error_and_r2_are_zero_and_one_for_the_truth_without_noise():
    table = load("linear_thirds", clients=6, dimension=4, noise=0.0)
    federation = divide(table, "natural", seed=0)
    measure = of_erickson("error_and_r2")
    assert measure(federation, federation.optima) == (0.0, 1.0)
    worse = federation.optima + torch.tensor([1.0, 0, 0, 0])
    error, r2 = measure(federation, worse)
    assert error == pytest.approx(1) and r2 < 1


def test_table_1a_of_erickson_runs_on_a_tiny_federation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["data.clients=6", "data.dimension=3", "data.tests=9", "run.rounds=4"]
    small += ["run.compile=never", "run.seeds=[0, 1]", "run.evaluate_every=2"]
    small += ["tune.trials=2", "tune.folds=2", "tune.rounds=2"]
    small += ["algorithm.Local.steps=2"]
    claims = items_of("erickson2025")["table1a"](small)
    shown = {claim.what: claim for claim in claims}
    assert shown["error: Karula"].published == "5.86±0.20"
    assert shown["r2: Karula better than IFCA"].agrees in (True, False)
    assert (next(tmp_path.glob("runs/*/table1a.csv"))).exists()


def test_recorded_table_1a_of_erickson_has_five_seeds_and_beats_one_model_for_all():
    file = papers() / "erickson2025" / "results" / "table1a.csv"
    if not file.exists():
        pytest.skip("Table 1a has not been recorded.")
    table = pd.read_csv(file)
    assert (table.groupby("algorithm")["seed"].nunique() == 5).all()
    claims = {c.what: c for c in of_erickson("table1a_claims")(table)}
    for measure in ("error", "r2"):
        for other in ("Local", "FedSGD", "FedAvg"):
            assert claims[f"{measure}: Karula better than {other}"].agrees


def test_karula_of_erickson_with_true_distances_beats_a_model_for_each_true_third():
    table = pd.read_csv(papers() / "erickson2025" / "results" / "table1a_why.csv")
    error = table.pivot(index="seed", columns="algorithm", values="error")
    gap = error["ridge, true thirds"] - error["Karula, true distances"]
    assert len(gap) == 5 and gap.mean() > gap.sem()

"""Claims about settings that choose themselves."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from coterie.clients.simulation import Simulation
from coterie.data.fitting import samples_of
from coterie.records import load_records
from coterie.report import write_report
from coterie.report.searches import settings_text
from coterie.scores.finals import score_of
from coterie.study import experiment
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.settings.halves import DECAYS, find_settings, halves_of
from coterie.study.settings.rules import is_linear
from coterie.study.settings.stopping import PATIENCE, plateau
from coterie.study.setup import prepare
from support.called import called
from support.refusals import refuses
from support.study_runs import together

SIZES = {"north": 30, "south": 50, "west": 90}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Plants whose output depends on four columns, each a little differently."""
    rng, rows = np.random.default_rng(5), []
    for k, (name, count) in enumerate(SIZES.items()):
        x = rng.normal(size=(count, 4)) * [1, 10, 0.1, 5]
        y = x @ [1.0, -0.05 + 0.1 * k, 3, 0] + 0.3 * rng.normal(size=count)
        rows += [(name, *a, b) for a, b in zip(x, 5e4 + 4e3 * y, strict=True)]
    path = tmp_path_factory.mktemp("plants") / "plants.csv"
    frame = pd.DataFrame(rows, columns=["plant", *"abcd", "kg"])
    frame.to_csv(path, index=False)
    return path


def study(file, **tables):
    data = {"path": str(file), "client": "plant", "target": "kg"}
    entries = [{"name": "local"}, {"name": "fedavg"}]
    return study_of({"data": data, "algorithm": entries, **tables})


def settings(result, seed=0):
    return json.loads((result.folder / f"settings-{seed}.json").read_text())


def test_local_training_is_ridge_regression_with_the_k_that_was_found(file, tmp_path):
    """In closed form: argmin of the mean squared error + k / (2 n) |w|^2, no bias."""
    made = study(file, run={"rounds": 100, "dtype": "float64"})
    result = run_study(made, runs=tmp_path)
    federation, k = prepare(made, 0).federation, settings(result)["decay"]
    index, owner = samples_of(federation.train)
    for i, row in enumerate(result.models("local")):
        mine = index[owner == i]
        x, y = federation.features[mine].double(), federation.targets[mine].double()
        x, y = x - x.mean(0), y.ravel() - y.mean()
        n = len(mine)
        gram = x.T @ x + k / 2 * torch.eye(x.shape[1], dtype=torch.float64)
        assert_close(row[:4], torch.linalg.solve(gram, x.T @ y), rtol=0, atol=1e-4)
        assert n == int(federation.train.size[i])


def test_the_k_with_the_best_score_on_the_other_half_is_taken(file):
    setup = prepare(study(file), 0)
    found = find_settings(setup)
    assert found.linear and list(found.scores) == [f"{k:g}" for k in DECAYS]
    assert found.decay == float(min(found.scores, key=found.scores.get))  # of errors
    # Each score is that of ridge regression on halves, nearly, in the unit of the file.
    errors, unit = [], setup.federation.preparations.unit.scale[0]
    for half in halves_of(setup.federation, 0):
        parts = [samples_of(part) for part in (half.train, half.validation)]
        for i in range(len(half)):
            (a, b), of = (part[0][part[1] == i] for part in parts), setup.federation
            x, y = of.features[a].double(), of.targets[a].double().ravel()
            mean = x.mean(0)
            gram = (x - mean).T @ (x - mean) + 0.5 * torch.eye(4, dtype=torch.float64)
            w = torch.linalg.solve(gram, (x - mean).T @ (y - y.mean()))
            out = (of.features[b].double() - mean) @ w + y.mean()
            gap = out - of.targets[b].double().ravel()
            errors.append(float(gap.square().mean().sqrt()) * unit)
    assert found.scores["1"] == pytest.approx(np.mean(errors), rel=0.03)


def averaged_on_halves(setup, k, models):
    """A round of FedAvg on each half, client after client, from these models."""
    federation = setup.simulation.federation
    curvature = setup.simulation.samples.measurements.curvature
    sizes, n = federation.train.size.double(), len(federation)
    made = []
    for half, model in zip(halves_of(federation, 0), models, strict=True):
        index, owner = samples_of(half.train)
        moved = torch.zeros_like(model)
        for i in range(n):
            mine = index[owner == i]
            x, y = federation.features[mine], federation.targets[mine].ravel()
            w, b, decay = model[:-1], model[-1], k / (len(mine) * n)
            for _ in range(10):
                gap, lr = x @ w + b - y, 1 / (curvature[i] + decay)
                w = w - lr * (2 * x.T @ gap / len(mine) + decay * w)
                b = b - lr * 2 * gap.mean()
            moved += sizes[i] / sizes.sum() * torch.cat([w, b[None]])
        made.append(moved)
    return made


def test_shared_models_have_the_k_with_which_fedavg_on_halves_is_best(file):
    setup = prepare(study(file, run={"dtype": "float64"}), 0)
    found, federation = find_settings(setup), setup.simulation.federation
    models = [setup.x[0]] * 2
    for k in DECAYS:
        models, errors = averaged_on_halves(setup, k, models), []
        for half, model in zip(halves_of(federation, 0), models, strict=True):
            index, owner = samples_of(half.validation)
            out = federation.features @ model[:-1] + model[-1]
            gap = (out - federation.targets.ravel())[index]
            errors += [gap[owner == i].square().mean().sqrt() for i in range(3)]
        mean = float(torch.stack(errors).mean()) * federation.preparations.unit.scale[0]
        assert found.shared_scores[f"{k:g}"] == pytest.approx(mean, rel=1e-9)
    best = float(min(found.shared_scores, key=found.shared_scores.get))
    assert found.shared_decay == min(best, found.decay)


def test_alike_clients_with_many_columns_share_a_model_with_more_decay(tmp_path):
    """As ridge regression of all rows does, by cross-validation."""
    rng = np.random.default_rng(2)
    x, truth = rng.normal(size=(160, 40)), rng.normal(size=40)
    y = x @ truth + 2 * np.linalg.norm(truth) * rng.normal(size=160)
    frame = pd.DataFrame(x, columns=[f"f{j}" for j in range(40)])
    frame["kg"], frame["plant"] = y, [f"plant {j % 4}" for j in range(160)]
    frame.to_csv(tmp_path / "wide.csv", index=False)
    found = find_settings(prepare(study(tmp_path / "wide.csv"), 0))
    assert found.shared_decay >= 10 and found.decay >= found.shared_decay


def test_halves_part_the_training_data_of_each_client_by_itself(file):
    federation = prepare(study(file), 0).federation
    alone = federation.select(torch.tensor([1]))
    for one, single in zip(halves_of(federation, 0), halves_of(alone, 0), strict=True):
        for name in ("train", "validation"):
            index, owner = samples_of(one.part(name))
            assert set(index[owner == 1].tolist()) == set(
                samples_of(single.part(name))[0].tolist()
            )
        train, judge = (samples_of(one.part(p))[0] for p in ("train", "validation"))
        both = torch.cat([train, judge]).sort().values
        assert torch.equal(both, samples_of(federation.train)[0].sort().values)


def test_settings_do_not_depend_on_validation_or_test_data(file):
    setup = prepare(study(file), 0)
    before, federation = find_settings(setup), setup.federation
    held = torch.cat(
        [samples_of(federation.part(p))[0] for p in ("validation", "test")]
    )
    targets = federation.targets.clone()
    targets[held] = 1e3
    setup.simulation.federation.targets[held] = 1e3
    after = find_settings(
        replace(setup, federation=replace(federation, targets=targets))
    )
    assert after == before


def test_what_the_search_costs_is_recorded(file, tmp_path):
    """8 products with Hessians cost two gradients of all data each; then steps with
    each k on both halves, which are all data, alone and together."""
    result = run_study(study(file, run={"rounds": 2}), runs=tmp_path)
    samples = int(prepare(study(file), 0).federation.train.size.sum())
    assert (
        settings(result)["gradients"]
        == (2 * 8 + sum(DECAYS.values()) + 10 * len(DECAYS)) * samples
    )


def test_a_setting_that_is_written_stays_as_it_is(file, tmp_path, monkeypatch):
    seen = {}

    def watch(setup, entry, *given, **options):
        seen[entry.label] = entry.options
        return train(setup, entry, *given, **options)

    train = experiment.run_cell
    monkeypatch.setattr(experiment, "run_cell", watch)
    entries = [
        {"name": "local", "lr": 0.02},
        {"name": "fedavg", "steps": 2},
        {"name": "ditto", "weight_decay": 0.5, "momentum": 0.3},
        {"name": "adaptive_all_for_one"},
    ]
    made = study(file, algorithm=entries, run={"rounds": 2})
    result = run_study(made, runs=tmp_path)
    found = settings(result)
    decay = f"samples({found['decay']:g}, {found['shared_decay']:g})"
    assert seen["local"] == {"lr": 0.02}
    usual = {"lr": "curvature(1)", "weight_decay": decay}
    assert seen["fedavg"] == usual | {"steps": 2}
    assert seen["ditto"] == usual | {"steps": 10, "weight_decay": 0.5, "momentum": 0.3}
    assert isinstance(
        seen["adaptive_all_for_one"]["lr"], float
    )  # the same for all clients
    assert prepare(made, 0).study.run.batch_size == 0
    written = study(file, run={"batch_size": 8})
    assert prepare(written, 0).study.run.batch_size == 8


@pytest.mark.parametrize(
    "tables",
    [{"privacy": {"clip": 1.0, "noise": 1.0}}, {"time": {"law": "constant(1)"}}],
)
def test_with_privacy_or_time_nothing_chooses_itself(file, tmp_path, tables):
    made = study(file, run={"rounds": 1}, **tables)
    assert made.chooses == () and study(file, **tables).chooses == ()
    assert study(file).chooses == ("rounds", "batch_size")
    result = run_study(made, runs=tmp_path)
    assert not list(result.folder.glob("settings*"))


@pytest.mark.parametrize("tune", [{}, {"tune": {"trials": 1, "folds": 2}}])
def test_rules_that_a_study_writes_itself_need_no_other_method(file, tmp_path, tune):
    """With `fedavg`, whose steps are automatic, clients measure in any case."""
    rules = {"lr": "curvature(1)", "weight_decay": "samples(2)"}
    entry, run = {"name": "local", **rules}, {"rounds": 2, "batch_size": 0}
    if tune:
        entry = {**entry, "tune": {"momentum": [0.0]}}
        tune = {"tune": {**tune["tune"], "space": {"steps": [3]}}}
    alone = study(file, algorithm=[entry], run={**run, "newcomers": 1}, **tune)
    models = run_study(alone, runs=tmp_path / "a").models("local")
    both = [
        entry,
        {"name": "fedavg", "tune": {"steps": [3]}} if tune else {"name": "fedavg"},
    ]
    with_other = study(file, algorithm=both, run={**run, "newcomers": 1}, **tune)
    again = run_study(with_other, runs=tmp_path / "b").models("local")
    assert torch.equal(models, again)


def test_rules_of_clients_are_refused_with_privacy(file, tmp_path):
    entry = {"name": "local", "lr": "curvature(1)"}
    private = {"clip": 1.0, "noise": 1.0, "unit": "sample"}
    given = {"algorithm": [entry], "privacy": private, "run": {"rounds": 1}}
    refuses("`lr` of local must be a number with", study, file, **given)


# Rounds


def test_training_ends_where_the_best_loss_has_not_fallen_for_a_while():
    falling = [0.5**t for t in range(30)]
    assert plateau(falling) is None
    assert plateau([*falling[:5], *[1.0] * 30]) == 4 + PATIENCE
    # A thousandth of the loss is no improvement, a hundredth is.
    assert plateau([1 - 1e-5 * t for t in range(30)]) == PATIENCE
    assert plateau([1 - 1e-2 * t for t in range(30)]) is None
    assert plateau([float("nan")] * 50) is None


def test_all_methods_and_seeds_end_at_the_same_round(file, tmp_path):
    made = study(file, run={"seeds": [0, 1]})
    result = run_study(made, runs=tmp_path)
    last = result.records.rounds.groupby(["algorithm", "seed"])["round"].max()
    assert last.nunique() == 1 and len(last) == 4
    assert 2 * PATIENCE < last.iloc[0] < 100
    # It is the latest at which one of them stops improving.
    losses = result.records.metrics.groupby(["algorithm", "seed", "round"])
    found = losses["validation_loss"].mean().groupby(level=[0, 1])
    ends = [series.index[plateau(list(series))][-1] for _, series in found]
    assert last.iloc[0] == max(ends)
    assert (result.folder / "study.toml").read_text().count("rounds") == 0


def test_a_study_that_is_stopped_goes_on_to_the_same_models(file, tmp_path):
    made = study(file, run={"seeds": [0, 1], "checkpoint_seconds": 0.0})
    whole = run_study(made, runs=tmp_path / "whole")
    for after in (1, 20, 25, 15):
        told = iter(range(after))

        def stop(progress, told=told):
            if next(told, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_study(made, runs=tmp_path / "parts", progress=stop)
    parts = run_study(made, runs=tmp_path / "parts")
    for label in ("local", "fedavg"):
        for seed in (0, 1):
            assert torch.equal(parts.models(label, seed), whole.models(label, seed))
    assert settings(parts) == settings(whole)


def test_processes_that_divide_the_clients_find_the_same(file, tmp_path):
    made = study(file, run={"dtype": "float64"})
    alone = run_study(made, runs=tmp_path / "alone")
    several = together(made, 2, tmp_path / "several")[0]
    one, other = settings(alone), settings(several)
    assert (one["decay"], one["gradients"]) == (other["decay"], other["gradients"])
    rounds = [r.records.rounds["round"].max() for r in (alone, several)]
    assert rounds[0] == rounds[1]
    gap = alone.models("fedavg") - several.models("fedavg")
    assert float(gap.abs().max()) < 1e-9


# Where steps fail


def test_steps_that_fail_are_tried_again_with_a_quarter_of_their_size(
    file, tmp_path, monkeypatch
):
    """Curvatures that are a hundred times too small let every step overshoot."""
    measure = Simulation.measure

    def wrong(self, x, **options):
        cost = measure(self, x, **options)
        known = self.samples.measurements
        small = known._replace(curvature=known.curvature / 100)
        self.samples = replace(self.samples, measurements=small)
        return cost

    monkeypatch.setattr(Simulation, "measure", wrong)
    said = []
    made = study(file, run={"rounds": 20})
    result = run_study(made, runs=tmp_path, notice=said.append)
    assert settings(result)["reduced"] == {"local": 3, "fedavg": 3}
    assert sum("begins again with steps of 1/" in line for line in said) == 6
    losses = result.records.metrics.groupby("round")["train_loss"].mean()
    assert losses.iloc[-1] < losses.iloc[0]
    again = run_study(made, runs=tmp_path)
    assert torch.equal(again.models(), result.models())


def test_other_models_take_steps_of_adam_on_minibatches(file, tmp_path):
    made = study(file, model={"name": "mlp"}, run={"rounds": 3})
    setup = prepare(made, 0)
    assert not is_linear(setup.module) and setup.study.run.batch_size == 32
    result = run_study(made, runs=tmp_path)
    found = settings(result)
    assert not found["linear"] and found["scores"] == {}
    losses = result.records.metrics.groupby("round")["train_loss"].mean()
    assert losses.iloc[-1] < losses.iloc[0]


def test_clients_with_few_samples_do_not_choose(tmp_path):
    rng = np.random.default_rng(1)
    rows = [
        (site, x, 3 * x + rng.normal())
        for site, count in {"a": 7, "b": 8, "c": 9}.items()
        for x in rng.normal(size=count)
    ]
    path = tmp_path / "few.csv"
    pd.DataFrame(rows, columns=["plant", "x", "kg"]).to_csv(path, index=False)
    found = find_settings(prepare(study(path), 0))
    assert found.decay == 1.0 and found.scores == {}


# What people see of it


def test_report_and_terminal_say_what_was_chosen(file, tmp_path):
    result = run_study(study(file), runs=tmp_path)
    found, records = settings(result), result.records
    said = settings_text(records)
    rounds = int(records.rounds["round"].max())
    assert found["shared_decay"] == found["decay"]
    assert f"weight decay {found['decay']:g} / samples, and {rounds} rounds." in said
    other = replace(records.settings[0], decay=100.0, shared_decay=10.0)
    assert (
        "weight decay 100 / samples (10 / samples where clients share a model), and"
    ) in settings_text(replace(records, settings=(other,)))
    trained = records.rounds.groupby("algorithm")["gradients"].max().sum()
    assert f"took {found['gradients'] / trained:.0%} of the gradients" in said
    page = write_report(records, tmp_path / "report.html").read_text(encoding="utf-8")
    section = page[page.index("Settings found automatically") :]
    for k, score in [*found["scores"].items(), *found["shared_scores"].items()]:
        assert f"k = {k}" in section and score_of(records).show(score) in section
    assert " rounds" not in settings_text(
        run_study(study(file, run={"rounds": 2}), runs=tmp_path).records
    )
    status, out, _ = called("report", str(result.folder))
    assert status == 0 and "Settings were found automatically" in " ".join(out.split())


@pytest.mark.parametrize("content", ["[]", '{"seed": "x", "linear": 1}', "{"])
def test_damaged_settings_are_told_in_one_sentence(file, tmp_path, content):
    result = run_study(study(file, run={"rounds": 1}), runs=tmp_path)
    (result.folder / "settings-0.json").write_text(content)
    refuses(r"settings-0\.json", load_records, result.folder)

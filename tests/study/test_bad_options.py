"""Claims about options that cannot be: one sentence, before anything is trained."""

from __future__ import annotations

import copy

import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import coterie as co
from coterie.checks import InputError
from coterie.cli.commands import app
from coterie.data.federation import Table
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from support.study_runs import linear_tables, refused, together

OWN = """
from coterie.options import Positive, method
from coterie.types import Algorithm


def whole(at):
    return at.outputs


def with_loss(clients, x, *, lr):
    return x - lr * clients.grad(x, loss=whole)


def with_rows(clients, x, *, lr):
    return x - lr * clients.grad(x, x[:1], loss=whole)


def factory(program):
    @method()
    def made(*, lr: Positive = 0.1):
        def step(x, oracle, rng):
            return oracle.each(program, x, lr=lr)[0], {}

        return Algorithm(lambda x, oracle: x, step, lambda x, oracle: x)

    return made


shape, rows = factory(with_loss), factory(with_rows)
"""

LOCAL, FEDAVG = {"name": "local", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}
IN_TIME = {"name": "ditto", "waits": False}

CASES = {
    "both": ([{**FEDAVG, "epochs": 1, "steps": 2}], {}, "`epochs` and `steps` of"),
    "both searched": (
        [{"name": "fedavg"}],
        {"tune": {"space": {"epochs": [1, 2], "steps": [1, 2]}}},
        "`epochs` and `steps` of local cannot be used together",
    ),
    "the other is searched": (
        [{**FEDAVG, "epochs": 1}, {**LOCAL, "label": "more", "epochs": 1}],
        {"tune": {"space": {"steps": [1, 2]}}},
        "`tune.space.steps` cannot be used, because .* say `epochs`",
    ),
    "momentum with adam": (
        [{"name": "fedavg", "lr": "adam(0.1)", "momentum": 0.9}],
        {},
        "`momentum` must be 0 with `lr` adam",
    ),
    "nesterov of inner steps": (
        [{"name": "pfedme", "inner_lr": "sgd(0.1, nesterov=true)"}],
        {},
        "`nesterov` needs a `momentum` above 0",
    ),
    "nesterov of tuning": (
        [{"name": "fedavg_finetune", "tune_lr": "sgd(0.1, nesterov=true)"}],
        {},
        "`nesterov` needs a `momentum` above 0",
    ),
    "adam without memory": (
        [{**IN_TIME, "lr": "adam(0.1)"}],
        {"time": {}},
        "`lr` adam of ditto needs rounds: .*, got 'adam",
    ),
    "warm-up without numbers": (
        [{**IN_TIME, "lr": "sgd(0.1, warmup=3)"}],
        {"time": {}},
        "`warmup` in `lr` of ditto needs rounds: .*, got 'sgd",
    ),
    "measured in time": (
        [{**IN_TIME, "lr": "curvature(1)"}],
        {"time": {}},
        r"`lr` of ditto must be a number with \[time\], .*, got 'curvature",
    ),
    "measured with privacy": (
        [{**FEDAVG, "weight_decay": "samples(1)"}],
        {"privacy": {"epsilon": 8.0, "clip": 1.0}},
        r"`weight_decay` of fedavg must be a number with \[privacy\]",
    ),
    "clipped twice": (
        [{"name": "fedavg", "lr": "sgd(0.1, clip=1)"}],
        {"privacy": {"epsilon": 8.0, "clip": 1.0, "unit": "sample"}},
        "`clip` in `lr` of fedavg cannot be used with `privacy.unit` sample",
    ),
    "an option that nobody uses": (
        [{**FEDAVG, "optimizer": {"clap": 1.0}}],
        {},
        "sgd has no option 'clap'. Did you mean 'clip'",
    ),
}


def tables(entries, **more):
    made = linear_tables(4, dtype="float32", baselines=False)
    epochs = all("epochs" in entry for entry in entries)
    first = [] if epochs else [LOCAL]
    return made | {"algorithm": [*first, *copy.deepcopy(entries)], **more}


@pytest.mark.parametrize("case", CASES)
def test_options_that_cannot_be_are_refused_in_one_sentence(tmp_path, case):
    entries, more, message = CASES[case]
    refused(tables(entries, **more), tmp_path, message)


def test_a_key_of_a_methods_own_table_may_need_the_optimiser_of_the_study(tmp_path):
    entries = [{**FEDAVG, "optimizer": {"beta2": 0.9}}]
    run_study(study_of(tables(entries, optimizer={"name": "adam"})), runs=tmp_path)


def test_a_command_says_it_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entries, more, message = CASES["both"]
    (tmp_path / "study.toml").write_text(tomli_w.dumps(tables(entries, **more)))
    found = CliRunner().invoke(app, ["run", "study.toml"])
    assert isinstance(found.exception, InputError)
    assert message in str(found.exception) and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shape", r"`whole` must give one number for each of 4 samples, .*\(4, 1\)"),
        ("rows", r"rows of a loss must have 4 rows, .* got shape \(1, 3\)"),
    ],
)
def test_mistakes_in_a_loss_of_ones_own_come_before_training(
    tmp_path, monkeypatch, name, message
):
    """Although another method would be trained first."""
    (tmp_path / "own_pieces_of_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [{"name": f"own_pieces_of_losses:{name}", "lr": 0.1}]
    refused(tables(entries), tmp_path, message)


def images(small: int) -> Table:
    """Clients of twelve images each, but one has fewer to train on."""
    sizes = torch.tensor([small, 12, 12])
    owner = torch.arange(3).repeat_interleave(sizes)
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randn(len(owner), 1, 10, 10, generator=rng)
    labels = torch.arange(len(owner)) % 2
    return Table("images", pixels, labels, "classification", 2, group=owner)


@pytest.mark.parametrize(
    ("small", "run", "entry", "message"),
    [
        (12, {"batch_size": 1}, LOCAL, "`batch_size` must be at least 2"),
        (
            9,
            {"batch_size": 4},
            {**FEDAVG, "epochs": 1},
            "the last one in an epoch of client 0 has 1 sample",
        ),
    ],
)
def test_batch_normalisation_needs_two_samples(tmp_path, small, run, entry, message):
    made = {
        "split": {"validation": 0.2, "test": 0.2, "min_classes": 1},
        "model": {"name": "cnn", "width": 2, "norm": "batch"},
        "run": {"rounds": 1, **run},
        "algorithm": [LOCAL, entry] if entry is not LOCAL else [LOCAL],
    }
    refused(co.study_of(made, data=images(small)), tmp_path, message)


def test_a_batch_larger_than_a_client_is_drawn_again_and_again(tmp_path):
    """With replacement in steps; in epochs, it is one step with all samples.

    One sentence says so.
    """
    entries = [{**FEDAVG, "epochs": 3}, {**FEDAVG, "steps": 3, "label": "steps"}]
    made = tables(entries)
    made["run"] |= {"batch_size": 1000, "dtype": "float64"}
    lines: list[str] = []
    large = run_study(study_of(made), runs=tmp_path, notice=lines.append)
    (said,) = [line for line in lines if "batch_size" in line]
    assert said.startswith("`run.batch_size` is 1,000, but 4 of 4 clients have fewer")
    made["run"]["batch_size"] = 0
    lines.clear()
    whole = run_study(study_of(made), runs=tmp_path, notice=lines.append)
    assert not [line for line in lines if "batch_size" in line]
    gap = large.models("fedavg") - whole.models("fedavg")
    assert float(gap.abs().max()) < 1e-12
    assert not torch.equal(large.models("steps"), whole.models("steps"))


MEASURED = [
    {"name": "fedavg", "lr": "curvature(1)"},
    {**LOCAL, "label": "decay", "weight_decay": "samples(1)"},
    {"name": "pfedme", "inner_lr": "curvature(0.5)"},
    {"name": "scaffold", "optimizer": {"lr": "curvature(1)", "clip": 5.0}},
]


def test_options_by_curvature_need_nothing_that_is_chosen(tmp_path):
    """All step sizes are written, and clients measure their losses all the same."""
    made = tables(MEASURED, tune={"trials": 2, "folds": 2, "space": {"steps": [1]}})
    made["run"] |= {"dtype": "float64", "newcomers": 1, "rounds": 2}
    alone = run_study(study_of(made), runs=tmp_path / "alone")
    first, *_ = together(study_of(made), 2, tmp_path / "divided")
    for label in ("fedavg", "decay", "pfedme", "scaffold"):
        gap = alone.models(label) - first.models(label)
        assert float(gap.abs().max()) < 1e-9

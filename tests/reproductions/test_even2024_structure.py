"""Claims about the reproductions of shared structure, tiny."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from coterie.cli.reproductions import items_of, papers
from coterie.study.config import read_study
from support.thesis_claims import recorded

ITEMS = items_of("even2024")
structure = import_module("reproduce_even2024.structure")


def test_parts_of_chapter_9_judge_nothing_wrongly_on_few_clients():
    claims = structure.message_claims(0.3, 0)
    claims += structure.newcomer_claims(0.3, 0)[1:]  # from 10 samples on
    assert len(claims) == 4 and all(claim.agrees for claim in claims)


def test_with_fewer_clients_chapter_9_compares_with_no_number_of_all_of_them():
    rows = {m: (1.0, 1 / m, 0.1, 0.5, 0.1, 1 / m) for m in structure.SAMPLES}
    few, all_of_them = (structure.rate_claims(60, rows, share) for share in (0.1, 1))
    for part, whole in zip(few, all_of_them, strict=True):
        assert part.agrees is (whole.agrees if "below" in part.what else None)
        assert whole.agrees is not None


def test_every_experiment_of_chapter_9_is_recorded():
    labels = {row["what"][:4] for row in recorded("chapter9")}
    assert {f"E9.{k}" for k in range(1, 6)} <= labels


def test_models_of_chapter_9_have_norm_one_in_their_subspace():
    x, basis = structure.subspace(7, 5, 2, torch.Generator().manual_seed(0))
    assert torch.allclose(x.norm(dim=1), torch.ones(7, dtype=x.dtype))
    assert torch.allclose(x @ basis @ basis.T, x)


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_studies_side_by_side_have_fedrep_s_settings(data):
    """100 clients, a tenth in a round, ten epochs of the head and one of the body."""
    study = read_study(papers() / "collins2021" / f"{data}.toml")
    by_label = {entry.label: entry.options for entry in study.algorithms}
    assert {"Local", "FedAvg", "Ditto", "FedRep"} <= set(by_label)
    options = by_label["FedRep"]
    assert options["head_steps"] == 10 * options["steps"]
    assert (options["lr"], options["momentum"]) == (0.01, 0.5)
    assert by_label["Ditto"]["lam"] == 1.0
    assert study.run.participation == 0.1 and study.run.rounds == 100

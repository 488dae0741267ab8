from __future__ import annotations

import re

import pandas as pd
import pytest

from coterie.reproduce import items_of, papers

ROOT = papers().parent


def test_every_paper_lists_items_with_a_first_line():
    for path in papers().glob("*/items.py"):
        for name, item in items_of(path.parent.name).items():
            assert item.__doc__, f"{path.parent.name} {name}"


def test_figure_1_agrees_with_every_published_statement():
    claims = items_of("philippenko2025")["fig1"]([])
    assert claims and all(claim.agrees for claim in claims)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "heart"])
def test_recorded_table_2_has_three_seeds_of_every_method(name):
    table = pd.read_csv(papers() / "philippenko2025" / "results" / f"table2_{name}.csv")
    assert set(table["seed"]) == {127, 496, 1729}
    assert (table.groupby("algorithm").size() == 3).all()
    assert table["test_accuracy"].between(0, 1).all()


def test_no_document_has_a_place_still_to_be_filled_in():
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *papers().rglob("*.md"),
    ]:
        found = re.findall(r"\b[A-Z]{3,}_[A-Z]{3,}(?:_[A-Z]+)*\b", path.read_text())
        assert set(found) <= {"COTERIE_DATA", "OMP_NUM_THREADS"}, f"{path}: {found}"

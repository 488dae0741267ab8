"""Claims about the table of theorems: its names exist, and no number is missing."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from coterie_theory.decentralised import gossip as rates
from support.scaled import Row, larger, notice, scaled

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "theorems.md").read_text(encoding="utf-8")
LAST = {
    "Philippenko": "Lemma 2, Property 1, Theorem 3, Corollary 1",
    "report": "Algorithm 2, Theorem 8, Proposition 3, Corollary 1, Lemma 6",
    "Fallah": "Algorithm 1, Lemma 4.2-4.4, Theorem 4.5-4.5, Corollary 4.6-4.6, "
    "Proposition F.1, Corollary F.2-F.2, Lemma H.2",
    "Erickson": "Algorithm 1, Proposition 3.4-3.4, Theorem 4.4-4.5, Lemma A.2",
    "chapter 1": "Algorithm 1.3, Proposition 1.1.4, Proposition 1.2.2, "
    "Proposition 1.3.1, Proposition 1.5.1",
    "chapter 2": "Theorem 2.8, Corollary 2.7.1, Proposition 2.A.2",
    "chapter 3": "Algorithm 3.1, Theorem 3.3, Lemma 3.2.1, Lemma 3.B.2, Lemma 3.C.2, "
    "Lemma 3.D.2",
    "chapter 4": "Algorithm 4.3, Theorem 4.4, Corollary 4.2.1, Proposition 4.2.1, "
    "Lemma 4.3.1, Lemma 4.A.4",
    "chapter 5": "Algorithm 5.1, Theorem 5.7, Corollary 5.C.1, Proposition 5.A.1, "
    "Lemma 5.B.2, Lemma 5.C.4, Lemma 5.E.1",
    "chapter 6": "Algorithm 6.3, Theorem 6.11, Proposition 6.3.2, Proposition 6.D.1, "
    "Corollary 6.3.2, Corollary 6.D.3, Lemma 6.2.1, Lemma 6.A.1",
    "chapter 7": "Algorithm 7.1, Theorem 7.6, Corollary 7.4.1, Proposition 7.4.1, "
    "Lemma 7.2.3, Lemma 7.4.2, Lemma 7.5.3, Lemma 7.B.2, Lemma 7.C.1",
    "chapter 8": "Algorithm 8.1, Theorem 8.4, Corollary 8.5.1, Corollary 8.6.1, "
    "Lemma 8.3.2, Lemma 8.4.1, Lemma 8.5.2, Lemma 8.B.1",
    "chapter 9": "Theorem 9.5, Proposition 9.3.1, Proposition 9.4.2, Lemma 9.3.4, "
    "Lemma 9.4.1, Lemma 9.A.2, Lemma 9.B.2",
    "chapter 10": "Theorem 10.4, Corollary 10.3.1, Proposition 10.3.1, "
    "Proposition 10.4.2",
    "chapter 11": "Theorem 11.2, Proposition 11.3.2, Proposition 11.4.1",
}
"""The last of each kind in each section of a paper, as its text numbers them; also the
first, where several kinds are numbered together."""


def sections() -> dict[str, list[list[str]]]:
    """Rows of the table by heading."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.MULTILINE)[1:]
    return {
        title: [
            [cell.strip() for cell in row.split("|")]
            for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)[1:]
        ]
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def rows_of(key: str) -> list[list[str]]:
    """The rows of the one section whose heading has this word, as a whole."""
    (found,) = [
        rows for title, rows in sections().items() if re.search(rf"{key}\b", title)
    ]
    return found


def numbers(last: str) -> list[str]:
    """All statements up to the last of its kind: "Lemma 2.A.3" has three."""
    kind, number = last.split()
    first, _, number = number.rpartition("-")
    *before, final = number.split(".")
    here = range(int(first.split(".")[-1]) if first else 1, int(final) + 1)
    return [f"{kind} {'.'.join([*before, str(one)])}" for one in here]


def places_of_tests() -> dict[str, Path]:
    """The file of every test, by its name."""
    return {
        name: file
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(
            r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    }


def found_at(path: str) -> Any:
    """What a path names, in `coterie_theory` by default; None: nothing."""
    full = path if path.startswith("coterie.") else f"coterie_theory.{path}"
    module, _, name = full.rpartition(".")
    try:
        return getattr(import_module(module), name, None)
    except ModuleNotFoundError:
        return None


def rows_with_functions() -> list[Row]:
    """A row for each function of each statement, with its tests."""
    return [
        Row(title, statement, path, tuple(re.findall(r"`(test_\w+)`", tests)))
        for title, rows in sections().items()
        for statement, functions, tests in rows
        if not functions.startswith("theory only")
        for path in re.findall(r"`([\w.]+)`", functions)
    ]


@pytest.mark.parametrize("key", LAST)
def test_no_number_is_left_out(key):
    expected = [one for last in LAST[key].split(", ") for one in numbers(last)]
    found = [row[0] for row in rows_of(key)]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)


def test_every_section_is_of_a_paper():
    assert len(sections()) == len(LAST)


@pytest.mark.parametrize("title", sections())
def test_every_function_and_every_test_exists_and_no_cell_is_blank(title):
    known = places_of_tests().keys()
    for statement, function, test in sections()[title]:
        assert statement and function and test, statement
        if function.startswith("theory only"):
            assert re.match(r"theory only: \w.{10,}", function), statement
        else:
            paths = re.findall(r"`([\w.]+)`", function)
            assert paths, f"{statement} is left open: {function}"
            for path in paths:
                assert callable(found_at(path)), f"{statement}: there is no {path}"
        named = re.findall(r"`(test_\w+)`", test)
        assert named or function.startswith("theory only"), statement
        assert set(named) <= known, f"{statement}: {set(named) - known}"


def test_names_that_do_not_exist_are_noticed():
    assert callable(found_at("rates.sgd_bound"))
    assert callable(found_at("coterie.optim.projections.project"))
    assert found_at("rates.no_such_bound") is None
    assert found_at("no_room.at_all") is None
    assert numbers("Lemma 3.B.2") == ["Lemma 3.B.1", "Lemma 3.B.2"]


PARTS = 4
"""Rows 0, 4, 8, ... are a part. Together they are the map; each runs by itself."""


@pytest.mark.parametrize("part", range(PARTS))
def test_one_of_the_named_tests_notices_if_a_function_is_larger_by_a_half(part):
    """Of a bound that is only above something, nobody would notice."""
    rows = rows_with_functions()[part::PARTS]
    places = places_of_tests()
    files = sorted({places[name] for row in rows for name in row.tests})
    found = notice({row: found_at(row.function) for row in rows}, files)
    assert found.keys() == set(rows)
    unnoticed = [row[:3] for row, test in found.items() if test is None]
    assert not unnoticed
    # What was scaled is as it was.
    assert rates.synchronous_bound(0.5, 1) == 0.25


def test_a_test_that_is_blind_is_found():
    """This one calls a bound, and is content with any that is large enough."""
    row = Row("", "", "", ("test_precision_calls_reach_the_precision",))
    places = places_of_tests()
    function = found_at("rates.convex_sgd_bound")
    assert notice({row: function}, [places[row.tests[0]]]) == {row: None}


def test_results_of_every_kind_are_larger():
    assert larger(2.0) == 3.0 and larger(3) == 5 and larger(True) is False
    assert larger((1.0, [2.0], {"a": 4.0})) == (1.5, [3.0], {"a": 6.0})
    assert list(larger(iter([2.0, 4.0]))) == [3.0, 6.0]
    assert larger(lambda x: x)(4.0) == 6.0
    with scaled(rates.synchronous_bound):
        assert rates.synchronous_bound(0.5, rounds=1) == 0.375
    assert rates.synchronous_bound(0.5, rounds=1) == 0.25

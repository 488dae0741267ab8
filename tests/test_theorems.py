"""Claims about the table of theorems: its names exist, and no number is missing."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

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


def names_of_tests() -> set[str]:
    """Names of all tests."""
    found = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        found |= set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    return found


def exists(path: str) -> bool:
    """Whether a path is a module or something in one; `coterie_theory` by default."""
    full = path if path.startswith("coterie.") else f"coterie_theory.{path}"
    module, _, name = full.rpartition(".")
    try:
        return hasattr(import_module(module), name) or bool(import_module(full))
    except ModuleNotFoundError:
        return False


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
    known = names_of_tests()
    for statement, function, test in sections()[title]:
        assert statement and function and test, statement
        if function.startswith("theory only"):
            assert re.match(r"theory only: \w.{10,}", function), statement
        else:
            paths = re.findall(r"`([\w.]+)`", function)
            assert paths, f"{statement} is left open: {function}"
            for path in paths:
                assert exists(path), f"{statement}: there is no {path}"
        named = re.findall(r"`(test_\w+)`", test)
        assert named or function.startswith("theory only"), statement
        assert set(named) <= known, f"{statement}: {set(named) - known}"


def test_names_that_do_not_exist_are_noticed():
    assert exists("rates.sgd_bound") and exists("coterie.optim.projections")
    assert not exists("rates.no_such_bound")
    assert not exists("no_room.at_all")
    assert numbers("Lemma 3.B.2") == ["Lemma 3.B.1", "Lemma 3.B.2"]

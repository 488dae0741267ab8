"""Claims about digests of programs: the same only for programs that do the same."""

from __future__ import annotations

import ast
import itertools

import pytest

from coterie.records import digests
from coterie.records.digests import code_digest

INNER_ELSE = "if a:\n    if b:\n        x = 1\n    else:\n        x = 2\n"
PROGRAMS = {
    "the else of the inner if": INNER_ELSE,
    "the else of the outer if": INNER_ELSE.replace("    else", "else")
    .replace("        x = 2", "    x = 2"),
    "an else of the loop": "for a in b:\n    if a:\n        c\nelse:\n    d\n",
    "an else in the loop": "for a in b:\n    if a:\n        c\n    else:\n        d\n",
    "an argument of the outer call": "x = total(absolute(x), dim=1)\n",
    "an argument of the inner call": "x = total(absolute(x, dim=1))\n",
    "what is called is called": "x = f(x)()\n",
    "what is called gets an argument": "x = f()(x)\n",
    "a decorator outside": "@d\ndef f():\n    def g():\n        return 1\n",
    "a decorator inside": "def f():\n    @d\n    def g():\n        return 1\n",
    "finally inside": "try:\n  try:\n    a\n  finally:\n    b\nexcept E: c\n",
    "finally outside": "try:\n  try:\n    a\n  except E: c\nfinally:\n  b\n",
    "a default": "f = lambda a, b=1: b\n",
    "no default": "f = lambda a, b: 1\n",
    "a default of a keyword": "f = lambda *, a=1, b: b\n",
    "the other keyword's": "f = lambda *, a, b=1: b\n",
    "to the end": "x[1:]\n",
    "from the start": "x[:1]\n",
}  # fmt: skip


def test_digests_differ_exactly_where_programs_do(tmp_path):
    """Syntax trees, as Python writes them, are the reference."""
    found = {}
    for what, text in PROGRAMS.items():
        (tmp_path / "program.py").write_text(text)
        found[what] = code_digest([tmp_path / "program.py"])
    for one, other in itertools.combinations(PROGRAMS, 2):
        trees = [ast.dump(ast.parse(PROGRAMS[what])) for what in (one, other)]
        assert trees[0] != trees[1]
        assert found[one] != found[other], (one, other)


@pytest.mark.parametrize(
    "text", [f"# more\n{INNER_ELSE}", f'"""A text."""\n{INNER_ELSE}',
             INNER_ELSE.replace("    ", "  "), INNER_ELSE.replace("x = 1", "x = (1)")]
)  # fmt: skip
def test_comments_docstrings_and_layout_do_not_count(tmp_path, text):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text(INNER_ELSE)
    other.write_text(text)
    assert code_digest([one]) == code_digest([other])


def test_digests_of_an_older_version_are_not_used(tmp_path, monkeypatch):
    """It kept digests by those of texts, and confused programs."""
    monkeypatch.setattr(digests, "_KNOWN", {})
    path = tmp_path / "one.py"
    path.write_text(INNER_ELSE)
    expected = code_digest([path])
    old = digests._sum(INNER_ELSE.encode())
    monkeypatch.setattr(digests, "_KNOWN", {old: "0" * 32})
    assert code_digest([path]) == expected

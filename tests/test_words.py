"""Claims about the English of documents and source, and about names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK, SENTENCE = 90, 40  # words
LINE, ROW = 140, 300  # characters; a row of a table cannot be wrapped
README = 120  # lines

# What we do not write, and what we write instead. Inline code is not looked at.
AVOIDED = {
    r"\bone can(not| not)?\b": '"we cannot" or "you cannot"',
    r"\bso many\b(?! that)": '"the number of X"',
    r"(?<![Tt]here )\b(is|are|was|were) no (?!\w+er\b|more|less)\w": '"is not a X"',
    r"\b(fewer|less|more) yet\b": '"the fewest"',
    r"\bbeside\b": '"besides", "in addition to" or "next to"',
    r"\bwhose [^.,;]* alone\b": "two sentences, or the clause turned around",
    r"\b(Whoever|whoever)\b": "the client that ..., everybody who ...",
    r"\b[Ww]hat no\b": "a subject: who does what",
    r"\bby what\b": "a subject: who does what",
    r"\bof which\b": '"and" with a subject, or "whose"',
    r"(?:^|[.:] )Of [a-z]": "the subject first",
    r"(?:^|[.] )Who [^.?]*\.": '"A client that ..."',
    r"\bsigns of a (message|text|name)\b": '"characters"',
    r"\brefused by name\b": '"refused, and the error names it"',
    r"\bdear(er|est)?\b": '"expensive"',
    r"[,;:] else\b": '"otherwise"',
    r"\bof (one's|everybody's) own\b": '"its own X"',
    r"\b(thereof|therein|whereof|thereby|hereby)\b": "a subject and a verb",
    r"\bthat they are by\b": "a subject and a verb",
    r"\bin the eyes of\b": '"against" or "for"',
    r"\bare as of\b": '"are those of X"',
    r"\b(NaN|None|empty) where (there|it|they)\b": '"NaN if"',
    r"\b[Tt]ells? (nobody|anybody|everybody|nothing) ": '"sends to", "reveals to"',
    r"\btold (the truth|true clusters)\b": '"that know the true clusters"',
}

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[\"(*]*[A-Z`\[])")


class Block(NamedTuple):
    """A paragraph, an item of a list or a cell of a table, as its reader sees it."""

    line: int
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def plain(text: str) -> str:
    """Text without addresses of links, and with one word for inline code."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"``.+?``|`[^`]+`", "`x`", text, flags=re.DOTALL)
    return " ".join(text.split())


def blocks_of(text: str) -> list[Block]:
    """Blocks of a page in their order; code and headings are not among them."""
    text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)
    found, line = [], 1
    for part in re.split(r"(\n\s*\n)", text):
        where = line
        line += part.count("\n")
        rows, prose = [], []
        for row in part.splitlines():
            (rows if row.lstrip().startswith("|") else prose).append(row)
        for row in rows:
            cells = re.split(r"(?<!\\)\|", row.strip().strip("|"))
            found += [Block(where, plain(cell)) for cell in cells]
        lines = [row for row in prose if not row.startswith("#")]
        pieces = _ITEM.split("\n".join(lines))
        found += [Block(where, plain(piece)) for piece in pieces]
    return [block for block in found if words(block.text)]


def words(text: str) -> int:
    """The number of words; a sign between two of them is none."""
    return len([word for word in text.split() if re.search(r"\w", word)])


def faults(text: str) -> list[str]:
    """What a page does that our guide does not allow, each with its line."""
    found = []
    for line, block in blocks_of(text):
        if (count := words(block)) > BLOCK:
            found.append(f"line {line}: a block of {count} words: {block[:60]}")
        for sentence in _END.split(block):
            if (count := words(sentence)) > SENTENCE:
                found.append(f"line {line}: a sentence of {count}: {sentence[:60]}")
        for pattern, instead in AVOIDED.items():
            if avoided := re.search(pattern, block):
                said = block[max(avoided.start() - 20, 0) : avoided.end() + 20]
                found.append(f'line {line}: "{said}": write {instead}')
    for number, row in enumerate(text.splitlines(), start=1):
        if len(row) > (ROW if row.lstrip().startswith("|") else LINE):
            found.append(f"line {number}: {len(row)} characters")
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sentences_and_blocks_are_short_and_words_are_everyday_words(page):
    found = faults(page.read_text(encoding="utf-8"))
    assert not found, "\n".join([name_of(page), *found])


SOURCES = sorted((ROOT / "src").rglob("*.py"))
_PROSE = re.compile(
    r"\w[\w,;:'`-]*( \S+){5,}[.!?]$", re.DOTALL
)  # what ends as sentences do


def texts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings without code, formulas and references, and messages; with lines."""
    of = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, of) and (told := ast.get_docstring(node)):
            for part in re.split(r"\n\s*\n", told):
                if not re.match(r"    |References|>>> ", part):
                    for item in _ITEM.split(part):
                        lines = [row for row in item.splitlines() if row[:4].strip()]
                        yield node.body[0].lineno, plain(" ".join(lines))
        elif isinstance(node, ast.JoinedStr):
            parts = (getattr(part, "value", "x") for part in node.values)
            text = "".join(part if isinstance(part, str) else "x" for part in parts)
            yield node.lineno, plain(text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if "\n" not in node.value and _PROSE.match(node.value):
                yield node.lineno, plain(node.value)


def test_docstrings_and_messages_have_short_sentences_in_everyday_words():
    found = []
    for path in SOURCES:
        for line, text in texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{name_of(path)}:{line}: "
            for sentence in _END.split(text):
                if (count := words(sentence)) > SENTENCE:
                    found.append(f"{where}a sentence of {count}: {sentence[:60]}")
            for pattern, instead in AVOIDED.items():
                if avoided := re.search(pattern, text):
                    found.append(f"{where}{avoided[0]!r}: write {instead}")
    assert not found, "\n".join(found)


BARE = 36
"""Functions and classes with the name of a bare participle or preposition. The number
may fall, and must not grow: name what a class holds, and what a function does."""

_IRREGULAR = set(
    "met made given known found drawn told seen held kept cut put left sent built "
    "begun bound brought chosen done felt fit grown heard hidden lost meant read "
    "run said set shown spent split spread taken thought thrown underway worn "
    "written among between beside within without above below apart alike alone".split()
)


def test_no_more_names_are_bare_participles():
    found = [
        f"{name_of(path)}: {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and "_" not in (word := node.name.strip("_").lower())
        and (re.fullmatch(r"\w*[^e]ed", word) or word in _IRREGULAR)
    ]
    assert len(found) <= BARE, "\n".join(found)


def test_the_readme_is_short_and_has_a_picture_near_its_top():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README
    assert any(line.startswith("![") for line in lines[:25])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("word " * 91, "a block of 91"),
        ("- short\n- " + "word. Word " * 46, "a block of 92"),
        ("word " * 41, "a sentence of 41"),
        ("| a | " + "word " * 41 + "|", "a sentence of 41"),
        ("x" * 141, "141 characters"),
        ("One cannot tell; one cannot know.", '"we cannot"'),
        ("It is no model.", '"is not a X"'),
        ("Of the CPU, three runs.", "the subject first"),
        ("Who is not heard may use it.", '"A client that ..."'),
    ],
)
def test_a_fault_is_found(text, fault):
    assert any(fault in found for found in faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "word\n" * 40,
        "Word word.\n" * 45,
        "```\n" + "word " * 20 + "\nis no model\n```",
        "`is no` and [there](is_no_model.md) is no longer one.",
        "So many that they fill it. Who sees what?",
    ],
)
def test_what_is_allowed_is_not_a_fault(text):
    assert faults(text) == []

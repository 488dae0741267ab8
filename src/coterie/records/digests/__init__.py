"""Digests of Python source, in which comments, docstrings and layout do not count."""

from __future__ import annotations

import ast
import gc
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...checks import InputError
from ..files import read_json, write

_KNOWN: dict[str, str] = {}
"""Digests of programs by the digests of their texts, so that none is parsed twice."""

_SIZE = 16  # bytes of a digest

_END = ")"
"""The word after all words of a node."""

_VERSION = b"2"
"""A part of the digest of a text, so that digests of older versions are not used."""

_WITH_DOCSTRING = {
    ("body", kind)
    for kind in (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
}


def code_digest(files: Iterable[Path]) -> str:
    """A digest of what files compute: the same after a change of comments alone."""
    texts = [file.read_bytes() for file in files]
    with _without_garbage_collection():
        found = [_digest_of(text) for text in texts]
    return _sum("\n".join(found).encode())


def _digest_of(text: bytes) -> str:
    """The digest of one program."""
    key = _sum(_VERSION + text)
    if key not in _KNOWN:
        try:
            words: list[str] = []
            _add_words(words, ast.parse(text))
            program = "\x1f".join(words).encode("utf-8", "surrogatepass")
        except (SyntaxError, ValueError, RecursionError):  # not a program
            program = text
        _KNOWN[key] = _sum(program)
    return _KNOWN[key]


def _add_words(words: list[str], node: ast.AST) -> None:
    """Adds the syntax tree as words, without positions and docstrings."""
    words.append(node.__class__.__name__)
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list) and (name, type(node)) in _WITH_DOCSTRING:
            value = _without_docstring(value)
        if isinstance(value, ast.AST):
            words.append(name)
            _add_words(words, value)
        elif isinstance(value, list) and value:
            words.append(f"{name} {len(value)}")
            for each in value:
                if isinstance(each, ast.AST):
                    _add_words(words, each)
                else:
                    words.append(repr(each))
        # What is empty is left out, as later versions of Python add such fields.
        elif value is not None and value != []:
            words.append(f"{name} {value!r}")
    words.append(_END)  # or an `else` could belong to an inner or an outer `if`


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return body[1:] if isinstance(first.value.value, str) else body
    return body


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A context without garbage collection, for making many objects that all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def remember_digests(path: Path) -> None:
    """Reads the digests that an earlier process kept, if their file is intact."""
    try:
        kept = read_json(path) if path.is_file() else {}
    except InputError:
        return
    for key, digest in kept.items():
        if all(isinstance(e, str) and len(e) == 2 * _SIZE for e in (key, digest)):
            _KNOWN.setdefault(key, digest)


def keep_digests(path: Path) -> None:
    """Writes all known digests, if the file lacks any of them."""
    try:
        kept = read_json(path) if path.is_file() else {}
    except InputError:
        kept = {}
    if not _KNOWN.keys() <= kept.keys():
        write(path, json.dumps(_KNOWN) + "\n")


def _sum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_SIZE).hexdigest()

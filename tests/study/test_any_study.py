"""Whatever a study says, it is taken or refused in one sentence, soon."""

from __future__ import annotations

import copy
import random

import tomli_w

from coterie.checks import InputError
from coterie.study.config import read_study, study_of
from support.tiny_studies import ADAPTIVE, LINEAR

FULL = {
    **LINEAR,
    "split": {"name": "natural", "seed": 3},
    "algorithm": [{"name": "local", "lr": 0.1, "schedule": "step(5, 0.5)"}, ADAPTIVE],
    "time": {"law": "lognormal(1, 0.5)", "speeds": [1.0, 2.0, 1.0, 1.0]},
    "tune": {"trials": 3, "space": {"lr": {"from": 0.01, "to": 1.0}, "steps": [1, 2]}},
}
VALUES = [
    *(None, True, 0, -1, 3, 2**63 - 1, 2**63, -(10**400), 10**5000),
    *(0.0, -0.0, 0.5, 5e-324, 1.7e308, float("inf"), float("nan")),
    *("", " ", "local", "a:b", ".a:b", "\0", "x" * 10_000, "step(1e999, 1)", "μ"),
    *("constant(0)", "word(", "(1)", "1,2", "\x1b[31m", "../../etc", "no.npy"),
    *([], [1], [[1]], [None], [True, 1], ["a"], [0.1, "a"], [float("nan")] * 2),
    *({}, {"name": 3}, {"from": 1}, {"from": 1, "to": 0}, {"a": {"b": {"c": 1}}}),
]


def changed_somewhere(tables: dict, rng: random.Random) -> dict:
    """The tables with a value or key replaced, added or gone, at any depth."""
    tables = place = copy.deepcopy(tables)
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return tables
        key = rng.choice(keys)
        deeper = isinstance(place[key], dict | list)
        if not deeper or rng.random() < 0.3:
            break
        place = place[key]
    way = rng.random()
    if way < 0.15:
        del place[key]
    elif way < 0.3 and isinstance(place, dict):
        place[rng.choice(["", "name", "seed", "lr", "steps", "é"])] = rng.choice(VALUES)
    else:
        place[key] = copy.deepcopy(rng.choice(VALUES))
    return tables


def test_any_tables_are_a_study_or_refused_in_one_sentence(unchecked):
    rng, refused = random.Random("any tables"), 0
    for _ in range(300):
        tables = changed_somewhere(FULL, rng)
        if rng.random() < 0.5:
            tables = changed_somewhere(tables, rng)
        try:
            study_of(tables)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


def test_any_text_is_a_study_or_refused_in_one_sentence(tmp_path, unchecked):
    rng, path = random.Random("any text"), tmp_path / "study.toml"
    whole = tomli_w.dumps(FULL).encode()
    signs = [b"", b"[", b"]", b"=", b'"', b"9" * 5000, b"\xff", b"\0", b"\n", b"e9"]
    for _ in range(150):
        at = rng.randrange(len(whole))
        end = at + rng.choice((0, 1, 1, 10, 100))
        path.write_bytes(whole[:at] + rng.choice(signs) + whole[end:])
        try:
            read_study(path)
        except InputError as error:
            assert "\n" not in str(error)
    path.write_bytes(b"x = " + b"[" * 100_000)
    try:
        read_study(path)
    except InputError as error:
        assert "is not valid TOML" in str(error)

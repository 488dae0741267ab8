"""Claims about damaged run folders: one sentence names the damage."""

from __future__ import annotations

import json
import random
import shutil
import tomllib
from pathlib import Path

import pytest

from coterie.checks import InputError
from coterie.records import load_records
from coterie.records.files import save, sealed_toml
from coterie.report import summary, write_report
from support.refusals import refuses

CASES = {
    "study.toml": [
        b"",
        b"name = 3",
        b"algorithm = 3",
        b"algorithm = [3]",
        b"[[algorithm]]\nname = 'local'",
        b"\xff\xfe",
        b"x = " + b"[" * 5000,
        b"x = " + b"9" * 5000,
    ],
    "task.json": [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"task": "no such task", "note": ""}',
        b'{"task": "regression", "note": 3}',
        b'{"task": ["regression"], "note": ""}',
        b'{"task": "classification", "note": "", "score": "no"}',
        b"[" * 100_000,
    ],
    "clients-0.csv": [
        b"",
        b"\0\0\0",
        b"seed,client\n0,0\n",
        b"seed,client,cluster,train,validation,test\n",
        b"seed,client,cluster,train,validation,test\n0,0,-1,1,1,1\n",
        b"seed,client,cluster,train,validation,test\n0,0,-1,x,1,1\n",
        b"\xff" * 100,
    ],
}


@pytest.fixture
def folder(tuned, tmp_path) -> Path:
    """A copy of a run of two algorithms and two seeds, with searches."""
    return Path(shutil.copytree(tuned.folder, tmp_path / "run"))


def is_toml(content: bytes) -> bool:
    try:
        tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_named(folder, name):
    for content in CASES[name]:
        if name == "study.toml" and is_toml(content):
            content = sealed_toml(tomllib.loads(content.decode())).encode()
        (folder / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name} is damaged and") as caught:
            load_records(folder)
        assert "\n" not in str(caught.value)


def test_a_table_of_other_clients_is_named(folder):
    path = folder / "clients-1.csv"
    lines = path.read_text().splitlines()
    others = (
        lines[:-1],
        [*lines, lines[-1]],
        [line.replace("1", "7") for line in lines],
    )
    for other in others:
        path.write_text("\n".join(other))
        refuses(r"clients-1\.csv is damaged", load_records, folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("settings", [3]), ("chosen", 99), ("steps", [[0, "1", 2, []]]), ("rungs", [])],
)
def test_a_damaged_search_is_named(folder, key, value):
    path = sorted(folder.glob("tuning/*.json"))[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    refuses(f"{path.name} is damaged", load_records, folder)


def test_a_cell_whose_parts_do_not_fit_is_named(folder):
    from coterie.records.cells import load_cell

    path = sorted(folder.glob("cells/*.pt"))[0]
    cell = load_cell(path)
    for change in ({"rounds": []}, {"seed": "0"}, {"metrics": cell.metrics[1:]}):
        save(path, vars(cell) | change)
        refuses(f"{path.name} is damaged", load_records, folder)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """The content with a few bytes changed, lost, doubled, or cut off."""
    signs = b'\0\xff\n",.-={}[]09eE '
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        end = min(len(content), at + rng.choice((1, 1, 1, 5, 40, 10**6)))
        new = rng.choice((b"", bytes([rng.choice(signs)]), content[at:end] * 2))
        content = content[:at] + new + content[end:]
    return content


@pytest.mark.parametrize("name", ["study.toml", "task.json", "clients-0.csv", "tuning"])
def test_whatever_happens_to_a_file_ends_in_records_or_a_sentence(folder, name):
    for cell in folder.glob("cells/*-1.pt"):  # whose seed has not begun, then
        cell.unlink()
    rng = random.Random(f"damage {name}")
    path = folder / name
    path = sorted(path.glob("*.json"))[0] if path.is_dir() else path
    whole, refusals, kept = path.read_bytes(), 0, []
    for _ in range(40):
        path.write_bytes(mutate(whole, rng))
        try:
            kept.append(load_records(folder))
        except InputError as error:
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 5
    for records in kept[:1]:  # what is taken can be shown
        summary(records)
        write_report(records, folder / "report.html")

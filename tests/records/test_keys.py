"""Claims about the key of a runs folder: digests of data reveal nothing without it."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import stat

import pytest

from coterie.checks import InputError
from coterie.cli.commands.comparisons import compare_runs
from coterie.records.keys import FINGERPRINT, KEY, digest_with, digests_with_key, key_of
from coterie.records.versions import digest_of
from coterie.study.experiment import run_study
from coterie.study.identity import identity_of
from coterie.study.setup import data_of
from support.tiny_studies import made

LOCAL = [{"name": "local", "lr": 0.3}]


@pytest.fixture
def study(tmp_path):
    """A study of a file with one record that somebody may guess."""
    rows = [f"{i % 4},{i % 7 / 2},{i % 3}" for i in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["client,x,target", *rows]))
    data = {"name": "file", "path": str(tmp_path / "d.csv"), "task": "regression"}
    return made(rounds=1, data=data, split={"name": "natural"}, algorithm=LOCAL)


def test_who_guesses_the_file_cannot_confirm_it_by_what_a_run_keeps(study, tmp_path):
    """Somebody who has the whole file and all settings lacks only the key."""
    folder = run_study(study, runs=tmp_path / "runs").folder
    plain, read = data_of(study).read, json.loads((folder / "read.json").read_text())
    guessed = {digest_of([tmp_path / "d.csv"]), *plain.values()}
    kept = " ".join(
        path.read_text()
        for path in folder.rglob("*")
        if path.suffix in (".json", ".toml", ".csv")
    )
    assert not any(digest in kept for digest in guessed)
    assert plain.keys() | {FINGERPRINT} == read.keys()
    assert folder.name != identity_of(study, plain)
    other = run_study(study, runs=tmp_path / "other").folder
    assert other.name != folder.name  # another key
    key = key_of(tmp_path / "runs")
    plainly = digest_of([tmp_path / "d.csv"])
    assert read["the data file d.csv"] == digest_with(key, plainly)


def test_the_same_data_are_recognised_within_a_runs_folder(study, tmp_path):
    first = run_study(study, runs=tmp_path / "runs").folder
    assert run_study(study, runs=tmp_path / "runs").folder == first
    assert stat.S_IMODE((tmp_path / "runs" / KEY).stat().st_mode) == 0o600


def test_a_run_that_was_moved_needs_the_key_of_its_old_folder(study, tmp_path):
    first = run_study(study, runs=tmp_path / "runs").folder
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(first, tmp_path / "elsewhere" / first.name)
    with pytest.raises(InputError, match=r"Move the file \.key of its old runs folder"):
        run_study(study, resume=moved)
    shutil.copy(tmp_path / "runs" / KEY, tmp_path / "elsewhere" / KEY)
    assert run_study(study, resume=moved).folder == moved


def test_runs_of_two_keys_compare_with_a_word_of_caution(study, tmp_path):
    folders = [run_study(study, runs=tmp_path / name).folder for name in "ab"]
    found = compare_runs(folders)
    assert found.same
    assert "cannot tell whether their files are the same" in found.sentence


def test_modules_and_what_has_no_content_need_no_key(tmp_path):
    read = {"the module mine": "12"}
    assert digests_with_key(read, tmp_path / "runs") == read
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("damage", ["mode", "short", "link"])
def test_a_key_that_others_may_read_or_that_is_damaged_is_refused(tmp_path, damage):
    key_of(tmp_path)
    path = tmp_path / KEY
    if damage == "mode":
        path.chmod(0o644)
    elif damage == "short":
        path.write_bytes(b"x")
    else:
        path.rename(tmp_path / "real")
        path.symlink_to("real")
    with pytest.raises(InputError, match=r"\.key must|cannot be written"):
        key_of(tmp_path)


def _ask(runs, answers):
    answers.put(key_of(runs))


def test_processes_that_begin_at_once_agree_on_one_key(tmp_path):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    workers = [
        context.Process(target=_ask, args=(tmp_path / "runs", answers))
        for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    found = {answers.get(timeout=30) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [KEY]

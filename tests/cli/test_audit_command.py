"""Claims about the command `audit`: its table, its JSON object and its exit code."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from coterie.checks import InputError
from coterie.cli.commands import app
from support.broken_mechanisms import lessen_noise
from support.called import called
from support.refusals import refusal
from support.tiny_studies import PLAIN_TOML, PRIVATE_TOML


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(PRIVATE_TOML)
    return path


def run_audit(*words):
    return CliRunner().invoke(app, ["audit", *map(str, words), "--quiet"])


def test_a_sound_study_passes_and_says_what_could_have_been_proved(file):
    shown = run_audit(file, "--runs", 8)
    assert shown.exit_code == 0
    for word in ("fedavg", "disproved", "shadow", "chosen rows", "unit client"):
        assert word in " ".join(shown.stdout.replace("│", " ").split()), word
    assert "a sample rebuilt from a recorded release is off by" in shown.stdout


def test_a_broken_promise_exits_with_one_and_says_so(file, monkeypatch):
    lessen_noise(monkeypatch, 0.01)
    told = run_audit(file, "--runs", 16, "--json")
    assert told.exit_code == 1
    answer = json.loads(told.stdout)
    assert answer["broken"] and answer["unit"] == "client" and answer["runs"] == 16
    sums = next(p for p in answer["proofs"] if p["attack"] == "canaries, sums")
    assert sums["verdict"] == "BROKEN" and sums["lower"] > sums["upper"]
    assert sums["guesses"] <= 12 * 6


def test_a_folder_that_is_no_run_is_refused(file):
    message = r"there is no run to audit in .*study\.toml and read\.json"
    with pytest.raises(InputError, match=message):
        raise run_audit(file.parent).exception


def test_few_guesses_are_said_to_be_few(file):
    shown = run_audit(file, "--runs", 8, "--set", "privacy.epsilon=9")
    assert "could not disprove an epsilon of 9" in " ".join(shown.stdout.split())


def test_a_study_without_privacy_has_no_promise(file):
    file.write_text(PLAIN_TOML)
    answer = json.loads(run_audit(file, "--runs", 8, "--json").stdout)
    assert {proof["verdict"] for proof in answer["proofs"]} == {"no promise"}
    assert {proof["upper"] for proof in answer["proofs"]} == {None}
    assert not answer["broken"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.toml"], "the study missing.toml cannot be read: No such file"),
        (["study.toml", "--runs", "2"], "`runs` must be at least 8, got 2"),
        (["study.toml", "--confidence", "2"], "`confidence` must be less than 1"),
        (["study.toml", "--set", "privacy.noise=1"], "got both"),
    ],
)
def test_mistakes_are_one_sentence(file, monkeypatch, words, message):
    monkeypatch.chdir(file.parent)
    assert message in refusal(called, "audit", *words, "--quiet")

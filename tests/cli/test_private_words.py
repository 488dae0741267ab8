"""Claims about what commands say about epsilons for each source of noise."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from coterie.cli.commands import app
from support.tiny_studies import PRIVATE_TOML

PRIVATE = PRIVATE_TOML + 'noise_source = "{source}"\n'
COMMANDS = {
    "run": ("run", "study.toml", "--quiet"),
    "plan": ("plan", "study.toml", "--epsilon", "1", "--quiet"),
    "audit": ("audit", "study.toml", "--runs", "8", "--quiet"),
}


def output_of(*words):
    shown = CliRunner().invoke(app, list(words))
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.mark.parametrize("source", ["seed", "system"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_say_where_noise_can_be_taken_off(
    tmp_path, monkeypatch, source, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(PRIVATE.format(source=source))
    text = " ".join(output_of(*COMMANDS[command]).split())
    assert ("Simulation only: the noise comes from the seed" in text) == (
        source == "seed"
    )


def test_a_run_ends_with_the_epsilon_of_each_role(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(PRIVATE.format(source="seed"))
    shown = output_of(*COMMANDS["run"])
    assert "the server" in shown and "and all others" in shown
    (row,) = json.loads(output_of(*COMMANDS["run"], "--json"))["epsilon"]
    name = row.pop("algorithm")
    assert name == "fedavg"
    assert row and all(value <= 1 + 1e-9 for value in row.values())
    assert max(row.values()) == pytest.approx(1, rel=1e-6)

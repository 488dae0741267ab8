"""Claims about averages whose masked numbers have 32 bits."""

from __future__ import annotations

import threading

import pytest
import torch

from coterie.deploy.sites import masks
from coterie.deploy.sites.hub import Hub, HubSettings
from support.sites import (
    NAMES,
    Death,
    run_sites,
    simulated,
    tables_of,
)

SETTINGS = HubSettings(patience=1.5)
TWO = tables_of("""
[run]
rounds = 4
seeds = [3]
batch_size = 8
[[algorithm]]
name = "fedavg"
lr = 0.1
steps = 3
[[algorithm]]
name = "dane"
""")


@pytest.fixture
def seen(monkeypatch) -> list[tuple[int, int, str, int]]:
    """Step, rank, type and bytes of every row that reaches the hub."""
    found, lock, true = [], threading.Lock(), Hub.answer

    def answer(hub, rank, parcel):
        header = parcel.header
        if header.get("kind") == "rows" and parcel.payload:
            with lock:
                told = header["arrays"][0][0], len(parcel.payload)
                found.append((header["step"], rank, *told))
        return true(hub, rank, parcel)

    monkeypatch.setattr(Hub, "answer", answer)
    return found


def refuse_other_models(folder, tables, commits, found, atol: float = 1e-6) -> None:
    """Raises unless models are those of the simulation."""
    wanted = simulated(folder, tables, commits)
    for rank, name in enumerate(NAMES):
        for label, models in wanted.items():
            own = found[name][1].models(label, 3)
            torch.testing.assert_close(own, models[[rank]], rtol=0, atol=atol)


def types_by_step(seen) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for step, _, kind, _ in seen:
        found.setdefault(step, set()).add(kind)
    return found


def test_rows_have_32_bits_after_the_first_round_of_each_algorithm(tmp_path, seen):
    commits, found = run_sites(tmp_path, TWO, SETTINGS)
    types = types_by_step(seen)
    wide, narrow = {"uint64"}, {"uint32"}
    assert [types[step] for step in range(1, 6)] == [wide, wide, *[narrow] * 3]
    assert [types[step] for step in range(6, 11)] == [wide, wide, *[narrow] * 3]
    refuse_other_models(tmp_path, TWO, commits, found)
    # The row of the model, and its share.
    parameters = found[NAMES[0]][1].models("fedavg", 3).shape[1]
    assert {size for step, _, _, size in seen if step == 3} == {4 * (parameters + 1)}


def test_a_restarted_member_does_not_know_the_scale_so_all_send_64_bits(tmp_path, seen):
    deaths = {"Basel": Death(4, "begin", 0)}
    commits, found = run_sites(tmp_path, TWO, SETTINGS, deaths)
    types = types_by_step(seen)
    assert types[3] == {"uint32"} and "uint64" in types[4] and types[5] == {"uint32"}
    refuse_other_models(tmp_path, TWO, commits, found)


def test_a_row_that_does_not_fit_is_sent_again_with_64_bits(
    tmp_path, seen, monkeypatch
):
    """The scale leaves no room, so rows that grow do not fit."""
    monkeypatch.setattr(masks, "_KNOWN_BITS", 32)
    opened, true = [], Hub.answer

    def answer(hub, rank, parcel):
        found = true(hub, rank, parcel)
        if found.header.get("kind") == "open":
            opened.append(found.header["arrays"][0][0])
        return found

    monkeypatch.setattr(Hub, "answer", answer)
    commits, found = run_sites(tmp_path, TWO, SETTINGS)
    types = types_by_step(seen)
    assert types[3] == {"uint32", "uint64"}
    assert set(opened) == {"uint64"}  # no sum of rows that did not fit
    refuse_other_models(tmp_path, TWO, commits, found)


def test_a_study_may_ask_for_64_bits(tmp_path, seen, monkeypatch):
    from support import sites

    true = sites.trust_in
    monkeypatch.setattr(
        sites, "trust_in", lambda *given: true(*given)._replace(bits=64)
    )
    run_sites(tmp_path, TWO, SETTINGS)
    assert {kind for _, _, kind, _ in seen} == {"uint64"}

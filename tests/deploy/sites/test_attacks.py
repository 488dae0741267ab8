"""Attacks on members by a hub that misbehaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from coterie.checks import InputError
from coterie.deploy.messages import decode, encode
from coterie.deploy.sites.hub import Hub, HubSettings
from coterie.deploy.sites.link import RunOver
from coterie.deploy.sites.masks import HASH, open_sum
from coterie.deploy.sites.member_store import MemberStore
from coterie.deploy.sites.wire import (
    Parcel,
    arrays_of,
)
from support.sites import (
    NAMES,
    Death,
    hub_on_loopback,
    run_site,
    site_files,
    tables_of,
)

SETTINGS = HubSettings(patience=1.5)
SHORT = tables_of("""
[run]
rounds = 3
seeds = [3]
batch_size = 8
[[algorithm]]
name = "fedavg"
lr = 0.1
steps = 2
""")
ROUND = 2
"""The step of the first round: before it are the set-up and the start."""

Answer = Callable[[int, Parcel], Parcel]
Evil = Callable[[Hub, Answer, int, Parcel], Parcel]


def run_under(
    evil: Evil, folder, monkeypatch, deaths=None, tables=SHORT
) -> dict[str, Any]:
    """What every member gets from a hub whose answers go through `evil`."""
    true = Hub.answer

    def answer(hub: Hub, rank: int, parcel: Parcel) -> Parcel:
        return evil(hub, lambda r, p: true(hub, r, p), rank, parcel)

    monkeypatch.setattr(Hub, "answer", answer)
    files = site_files(folder)

    def run(name: str) -> Any:
        own = (deaths or {}).get(name, [])
        try:
            return run_site(running, name, tables, files[name], folder, own)
        except (InputError, RunOver) as error:
            return error
        except BaseException:
            running.hub.stop()  # or the others wait for this member
            raise

    with hub_on_loopback(folder, SETTINGS) as running:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            return dict(zip(NAMES, pool.map(run, NAMES), strict=True))


def refusals_in(found: dict[str, Any]) -> str:
    """What members said; raises if any of them has a result."""
    assert all(isinstance(one, Exception) for one in found.values()), found
    return " | ".join(f"{name}: {one}" for name, one in found.items())


def at(parcel: Parcel, step: int, kind: str, number: int | None = None) -> bool:
    """Whether a message is this call of a step."""
    header = parcel.header
    same = header.get("kind") == kind and header.get("step") == step
    return same and number in (None, header.get("number"))


def changed(parcel: Parcel, place: int) -> Parcel:
    """The message with one changed byte of its payload."""
    payload = bytearray(parcel.payload)
    payload[place] ^= 1
    return parcel._replace(payload=bytes(payload))


# A hub that misbehaves.


def start_of(parcel: Parcel, rank: int) -> int:
    """Where the value of a member begins in the answer to a gather."""
    return sum(size for other, size in parcel.header["sizes"] if other < rank)


def test_a_hub_that_swaps_a_mask_key_is_found(tmp_path, monkeypatch):
    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, ROUND, "gather", 0) and rank == 0 and found.payload:
            return changed(found, start_of(found, 1) + 4)  # Basel's key of masks
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "the signature of member 1 is wrong" in said


def test_a_hub_that_tells_two_lists_of_present_members_is_found(tmp_path, monkeypatch):
    """Aarau hears that Chur is away, and gets everything without Chur's part."""

    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        header = found.header
        if rank == 0 and parcel.header.get("step") == ROUND and "asked" in header:
            return Parcel(header | {"asked": [0, 1, 2], "present": [0, 1, 2]})
        if rank == 0 and at(parcel, ROUND, "gather") and "sizes" in header:
            end = start_of(found, 3)
            sizes = [one for one in header["sizes"] if one[0] != 3]
            return Parcel(header | {"sizes": sizes}, found.payload[:end])
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "does not agree with this member on the run, on who is present" in said


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("open", "has not signed the end of 'fedavg, seed 3, round 1'"),  # its sum
        ("rows", "has another row of member 0 than the one that it sent"),  # its list
    ],
)
def test_a_hub_that_tells_one_member_something_else_is_found(
    kind, sentence, tmp_path, monkeypatch
):
    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, ROUND, kind) and rank == 0 and found.payload:
            return changed(found, 0)
        return found

    assert sentence in refusals_in(run_under(evil, tmp_path, monkeypatch))


def test_a_hub_that_tells_another_scale_of_a_sum_is_found(tmp_path, monkeypatch):
    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, ROUND + 1, "open") and found.payload:
            values, shares = found.header["exponents"]
            return Parcel(
                found.header | {"exponents": [values + 1, shares]}, found.payload
            )
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "the hub tells another scale of a sum than its members'" in said


def test_a_hub_that_says_to_one_member_that_a_row_does_not_fit_opens_no_sum(
    tmp_path, monkeypatch
):
    """Aarau sends its row again, with other masks; the first sum stays closed."""
    opened = []

    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, ROUND + 1, "rows") and rank == 0 and found.payload:
            return Parcel({"kind": "rows", "fits": False})
        if at(parcel, ROUND + 1, "open"):
            opened.append(rank)
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "they call a verb with another `kind`" in said
    assert not opened


def test_a_hub_that_tells_one_member_another_scale_before_a_sum_is_found(
    tmp_path, monkeypatch
):
    """Scales are signed with the keys of masks."""

    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, ROUND + 1, "gather", 0) and rank == 0 and found.payload:
            return changed(found, start_of(found, 1) + 4 + 2 * HASH + 3)
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "the signature of member 1 is wrong" in said


def test_a_hub_cannot_sum_a_smaller_set_after_it_has_opened_a_sum(
    tmp_path, monkeypatch
):
    """It opens the sum of four, says that Chur was lost, and asks the other three."""
    rows: dict[int, Any] = {}
    openings: list[bytes] = []
    totals: list[Any] = []
    turn = threading.Barrier(4, timeout=10)

    def evil(hub, answer, rank, parcel):
        header = dict(parcel.header)
        if header.get("step") != ROUND:
            return answer(rank, parcel)
        if header["kind"] == "begin":
            header["lists"] = []  # the honest part of the hub would wait for Chur
            return answer(rank, Parcel(header))
        if header["attempt"] == 1 and header["kind"] == "rows" and parcel.payload:
            rows[rank] = arrays_of(header["arrays"], parcel.payload)[0]
        if header["attempt"] == 1 and header["kind"] == "open":
            openings.append(parcel.payload)
            if turn.wait() == 0:
                pieces = {r: openings[0][HASH * r : HASH * (r + 1)] for r in range(4)}
                totals.append(open_sum(dict(sorted(rows.items())), pieces))
                with hub._turn:
                    hub._abort("Chur did not answer", {3})
            turn.wait()
            return Parcel({"aborted": True})
        if header["attempt"] == 2 and header["kind"] == "rows":
            raise AssertionError("a row of the smaller sum was sent")
        return answer(rank, parcel)

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert len(totals) == 1  # the hub did open it
    assert "asks again for a sum in 'fedavg, seed 3, round 1'" in said


def test_a_hub_cannot_ask_fewer_for_the_second_sum_of_a_round(tmp_path, monkeypatch):
    """It says that Chur was lost after the first sum, and hides that all must wait."""
    sent, turn = [], threading.Barrier(4, timeout=10)

    def evil(hub, answer, rank, parcel):
        header = dict(parcel.header)
        if header.get("step") != ROUND:
            return answer(rank, parcel)
        if header["kind"] == "begin":
            header["lists"] = []
            return answer(rank, Parcel(header))
        if header["attempt"] == 1 and header["kind"] == "rows" and header["number"] > 3:
            if turn.wait() == 0:
                with hub._turn:
                    hub._abort("Chur did not answer", {3})
            turn.wait()
            return Parcel({"aborted": True})
        if header["attempt"] == 2 and header["kind"] in ("gather", "rows"):
            sent.append(rank)
        return answer(rank, parcel)

    two_sums = {**SHORT, "algorithm": [{"name": "dane"}]}
    said = refusals_in(run_under(evil, tmp_path, monkeypatch, tables=two_sums))
    assert "the hub asks for more in 'dane, seed 3, round 1' without members" in said
    assert not sent


def test_a_hub_cannot_forget_who_was_in_the_first_sum_of_a_round(tmp_path, monkeypatch):
    """It says that only three were present when the first sum was opened."""
    turn = threading.Barrier(4, timeout=10)

    def evil(hub, answer, rank, parcel):
        header = dict(parcel.header)
        if header.get("step") != ROUND:
            return answer(rank, parcel)
        if header["kind"] == "begin":
            header["lists"] = []
            found = answer(rank, Parcel(header))
            if found.header.get("attempt") == 2:
                return Parcel(found.header | {"present": [0, 1, 2]}, found.payload)
            return found
        if header["attempt"] == 1 and header["kind"] == "rows" and header["number"] > 3:
            if turn.wait() == 0:
                with hub._turn:
                    hub._abort("Chur did not answer", {3})
            turn.wait()
            return Parcel({"aborted": True})
        return answer(rank, parcel)

    two_sums = {**SHORT, "algorithm": [{"name": "dane"}]}
    said = refusals_in(run_under(evil, tmp_path, monkeypatch, tables=two_sums))
    assert "asks again for a sum in 'dane, seed 3, round 1'" in said


def test_a_member_knows_after_a_restart_which_sums_may_be_open(tmp_path):
    store = MemberStore(tmp_path)
    store.note_list(4, 1, (0, 1, 2))
    store.note_list(4, 3, (0, 1))
    store.close()
    again = MemberStore(tmp_path)
    assert again.lists(4) == [(1, (0, 1, 2)), (3, (0, 1))]
    assert again.lists(5) == []
    again.note_list(5, 0, (2,))
    assert again.lists(4) == []  # the step is over
    again.close()


def test_a_member_does_no_step_again_for_a_hub_with_an_old_log(tmp_path):
    store = MemberStore(tmp_path)
    store.begin(4, 2, "round 4")
    store.close()
    again = MemberStore(tmp_path)
    for step, attempt in ((4, 2), (4, 1), (3, 9)):
        with pytest.raises(InputError, match="the hub has an old log"):
            again.begin(step, attempt, "round")
    again.begin(4, 3, "round 4")
    again.begin(5, 1, "round 5")
    again.close()


def with_other_scale(found: Parcel) -> Parcel:
    """The log with another scale of every sum."""
    steps = []
    for one in found.header["steps"]:
        answers = [
            [header | ({"exponents": [1, 1]} if header.get("exponents") else {}), size]
            for header, size in one["answers"]
        ]
        steps.append({**one, "answers": answers})
    return Parcel(found.header | {"steps": steps}, found.payload)


def without_votes(found: Parcel) -> Parcel:
    """The log with steps that nobody has signed."""
    steps = [one | {"votes": {}} for one in found.header["steps"]]
    return found._replace(header=found.header | {"steps": steps})


LOGS = {
    "sums": ("has not signed the end of", lambda found: changed(found, -1)),
    "scales": ("has not signed the end of", with_other_scale),
    "votes": ("nobody has signed", without_votes),
}


def test_a_value_that_cannot_be_read_is_refused_in_words(tmp_path, monkeypatch):
    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, 0, "gather", 0) and rank == 0 and found.payload:
            return changed(found, start_of(found, 1))
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "what member 1 sent to all cannot be read" in said


@pytest.mark.parametrize("forged", LOGS)
def test_a_forged_log_convinces_nobody_who_was_away(forged, tmp_path, monkeypatch):
    sentence, forge = LOGS[forged]

    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if parcel.header["kind"] == "log" and rank == 1 and found.header.get("steps"):
            return forge(found)
        return found

    deaths = {"Basel": [Death(ROUND + 1, "begin", 1)]}
    found = run_under(evil, tmp_path, monkeypatch, deaths)
    assert sentence in str(found["Basel"])


def test_a_hub_cannot_say_that_a_step_counts_which_nobody_has_signed(
    tmp_path, monkeypatch
):
    """Basel ends after its vote, so it must ask whether all have voted."""

    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        asks = rank == 1 and at(parcel, ROUND, "log")
        return without_votes(found) if asks else found

    deaths = {"Basel": [Death(ROUND, "vote", 1, False)]}
    found = run_under(evil, tmp_path, monkeypatch, deaths)
    assert "nobody has signed 'fedavg, seed 3, round 1'" in str(found["Basel"])


def bits_are_fair(row: np.ndarray) -> None:
    """Raises unless bits look like fair coins, at five standard deviations."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / len(bits) ** 0.5


def test_what_the_hub_sees_is_random_and_nothing_of_it_comes_twice(
    tmp_path, monkeypatch
):
    """Over a run with a lost member: masked rows, their differences, and all keys."""
    rows, keys, lock = [], [], threading.Lock()

    def evil(hub, answer, rank, parcel):
        header = parcel.header
        with lock:
            if header["kind"] == "rows" and parcel.payload:
                rows.append(arrays_of(header["arrays"], parcel.payload)[0].reshape(-1))
            first = header["kind"] == "gather" and header.get("number") == 0
            if first and header["step"] > 0 and parcel.payload:
                keys.append(parcel.payload[4 : 4 + 2 * HASH])
        return answer(rank, parcel)

    deaths = {"Basel": [Death(ROUND + 1, "rows", 1)]}
    found = run_under(evil, tmp_path, monkeypatch, deaths)
    assert not any(isinstance(one, Exception) for one in found.values())
    assert len(rows) >= 4 * 4 and len(keys) >= 4 * 4
    halves = [raw[:HASH] for raw in keys] + [raw[HASH:] for raw in keys]
    assert len(set(halves)) == len(halves)  # mask and mail keys of every attempt
    bits_are_fair(np.concatenate([row.view(np.uint8) for row in rows]))
    pairs = [
        a - b
        for i, a in enumerate(rows)
        for b in rows[:i]
        if (a.dtype, a.shape) == (b.dtype, b.shape)
    ]
    bits_are_fair(np.concatenate([pair.view(np.uint8) for pair in pairs]))
    assert all(len(np.unique(each)) == len(each) for each in pairs if len(each) > 3)


def with_sizes(found: Parcel, told: Callable[[int, list[int]], list[int]]) -> Parcel:
    """The answer to a gather of sizes with other sizes; other answers are unchanged."""
    pieces, sizes, start = [], [], 0
    for rank, size in found.header["sizes"]:
        piece = found.payload[start : start + size]
        start += size
        value = decode(piece)
        if not isinstance(value, list) or [type(n) for n in value] != [int] * 3:
            return found
        pieces.append(encode(told(rank, value)))
        sizes.append([rank, len(pieces[-1])])
    return Parcel(found.header | {"sizes": sizes}, b"".join(pieces))


def test_a_hub_that_tells_each_member_other_sizes_opens_no_sum(tmp_path, monkeypatch):
    """Aarau would weigh nearly 1 in every sum, which would then be its row."""
    opened = []

    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, 0, "gather") and "sizes" in found.header:
            if not parcel.header.get("passing"):
                large = [10**9, 0, 0]

                def told(other: int, sizes: list[int]) -> list[int]:
                    if other == rank:  # or it would notice at once
                        return sizes
                    return large if other == 0 or rank == 0 else [1, 0, 0]

                return with_sizes(found, told)
        if found.header.get("kind") == "open" and parcel.header.get("step", 0) > 0:
            opened.append(parcel.header["step"])
        return found

    refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert not opened


def test_a_hub_that_changes_what_a_member_has_told_is_found(tmp_path, monkeypatch):
    def evil(hub, answer, rank, parcel):
        found = answer(rank, parcel)
        if at(parcel, 0, "gather") and "sizes" in found.header:
            if not parcel.header.get("passing"):
                return with_sizes(found, lambda other, sizes: [10**6 + other, 0, 0])
        return found

    said = refusals_in(run_under(evil, tmp_path, monkeypatch))
    assert "the hub has changed what this member told the others" in said

"""A hub from its files: the study, the roster that all members signed, and its key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...checks import InputError, several
from ...study.settings.sites import Sites, sites_of, study_hash
from .attempts import HubPrograms
from .channel import Credentials, certificate_digest, serve
from .hub import Hub, HubSettings
from .keys import holds, pem, read_key
from .reading import content_of, tables_of
from .rosters import Roster, check, read_roster
from .store import HubStore

_PAUSE, _GRACE = 0.1, 20.0  # seconds

HEADERS = 2**21
"""The most bytes of a message besides its rows."""


class HubFiles(NamedTuple):
    """The checked files of a hub."""

    tables: Mapping[str, Any]  # of the study
    roster: Roster
    credentials: Credentials

    @property
    def sites(self) -> Sites:
        """The table [sites] of the study."""
        return sites_of(self.tables.get("sites", {}))


def read_hub(study: Path, roster_file: Path, key_file: Path | None) -> HubFiles:
    """The files of a hub.

    Args:
        study: of all members.
        roster_file: the roster, which has the certificate of the hub.
        key_file: of the hub; None: its name with ".key", next to the roster.

    Raises:
        Problems: with everything that is wrong with the roster.
    """
    tables = tables_of("study", study)
    roster = check(read_roster(roster_file), study_hash(tables))
    sites = sites_of(tables.get("sites", {}))
    sites.largest_for(len(roster.members))
    sites.refuse_few(len(roster.members))
    place = key_file or roster_file.parent / f"{roster.hub.name}.key"
    key = read_key(place)
    if not holds(roster.hub.certificate, key):
        raise InputError(
            f"the key {place} must be that of the hub {roster.hub.name} in the roster."
        )
    credentials = Credentials(
        "".join(map(pem, roster.hub.certificates)).encode(),
        content_of("key", place),
        "".join(map(pem, roster.authorities)).encode(),
    )
    return HubFiles(tables, roster, credentials)


class Serving(NamedTuple):
    """A hub that serves members."""

    hub: Hub
    port: int


@contextmanager
def serving(
    files: HubFiles, listen: str, folder: Path, without: Sequence[str] = ()
) -> Iterator[Serving]:
    """A context in which a hub serves its members.

    Args:
        files: of the hub.
        listen: host and port; port 0 takes any.
        folder: of the log.
        without: names of members that the hub does not hear.
    """
    for name in without:
        files.roster.rank_named(name)
    sites, roster = files.sites, files.roster
    folder.mkdir(parents=True, exist_ok=True)
    store = HubStore(folder / f"{roster.run_name[:16]}.db")
    settings = HubSettings(least=sites.least_members, patience=sites.patience)
    ranks = {
        certificate_digest(pem(seat.certificate).encode()): rank
        for rank, seat in enumerate(roster.members)
        if seat.name not in without
    }
    try:
        central = _coordinator(files, store)
        hub = Hub(roster.names, roster.run_name, store, settings, central=central)
        largest = sites.message_bytes + HEADERS
        with serve(
            hub.answer, ranks, listen, files.credentials, largest=largest
        ) as port:
            try:
                yield Serving(hub, port)
            finally:
                hub.stop()
    finally:
        store.close()


def _coordinator(files: HubFiles, store: HubStore) -> HubPrograms | None:
    """Runs programs on rows in the clear; None: the study does not allow it."""
    if not files.sites.trust_coordinator:
        return None
    from .coordinator import HubCoordinator

    entries = files.tables.get("algorithm", [])
    entries = entries if isinstance(entries, list) else [entries]
    methods = [str(entry["name"]) for entry in entries]
    return HubCoordinator(methods, len(files.roster.members), store.server())


def follow(hub: Hub, say: Callable[[str], None]) -> str:
    """Waits until the run has ended, and says what happens; returns how it ended.

    Args:
        hub: that serves its members.
        say: called with a line whenever a member comes or goes, or a step begins.
    """
    there: set[str] = set()
    what, aborts = "", 0
    while True:
        hub.look()
        status = hub.status()
        now = {one["name"] for one in status["members"] if one["there"]}
        for name in sorted(now - there):
            say(f"{name} is there.")
        for name in sorted(there - now):
            say(f"{name} is lost.")
        if status["what"] != what:
            say(str(status["what"]))
        if status["aborts"] > aborts:
            say(f"{several(status['aborts'], 'attempt')} ended early so far.")
        there, what, aborts = now, status["what"], status["aborts"]
        if status["ended"] or hub.all_finished():
            ended = str(status["ended"]) or "done"
            end = time.monotonic() + min(hub.settings.patience, _GRACE)
            while ended != "done" and not hub.all_told() and time.monotonic() < end:
                time.sleep(_PAUSE)  # members that compute now hear of it later
            return ended
        time.sleep(_PAUSE)


def refuse_listen(listen: str) -> str:
    """Returns an address to listen at, if it reads HOST:PORT."""
    host, colon, port = listen.rpartition(":")
    if not host or not colon or not port.isdigit() or int(port) > 65535:
        raise InputError(
            f"`--listen` must be HOST:PORT, such as 0.0.0.0:8443, got {listen!r}."
        )
    return listen

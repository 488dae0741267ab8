"""A hub and members on the loopback, with certificates made for a test."""

from __future__ import annotations

import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from cryptography.hazmat.primitives import serialization

from coterie.checks import DisconnectedError
from coterie.data.files import table as read_table
from coterie.deploy.sites.away import away_key
from coterie.deploy.sites.channel import (
    Credentials,
    HubChannel,
    certificate_digest,
    serve,
)
from coterie.deploy.sites.comparing import simulated_models
from coterie.deploy.sites.coordinator import HubCoordinator
from coterie.deploy.sites.hub import Hub, HubSettings
from coterie.deploy.sites.keys import pem
from coterie.deploy.sites.member import Member
from coterie.deploy.sites.member_store import MemberStore
from coterie.deploy.sites.runs import SiteRun
from coterie.deploy.sites.site_data import read_site_table
from coterie.deploy.sites.store import HubStore
from coterie.deploy.sites.verbs import MemberTrust
from coterie.records import Folder
from coterie.study import Study, study_of
from support.site_rosters import authority, party

NAMES = ("Aarau", "Basel", "Bern", "Chur")


def credentials_of(name: str) -> Credentials:
    """What a member or the hub shows."""
    one = party(name)
    plain = one.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    root = pem(authority().certificate).encode()
    return Credentials(pem(one.certificate).encode(), plain, root)


def trust_in(
    names: Sequence[str], name: str, folder: Path, least: int = 3
) -> MemberTrust:
    """The keys of a member, and what it knows of the others."""
    return MemberTrust(
        study=b"s" * 32,
        roster=b"r" * 32,
        rank=list(names).index(name),
        key=party(name).key,
        certificates=[party(other).certificate for other in names],
        scale=2**28,
        largest=2.0**30,
        least=least,
        away=away_key(folder),
        away_keys={},
    )


def site_files(folder: Path, names: Sequence[str] = NAMES) -> dict[str, Path]:
    """A file of each hospital of the example, and one with all of them."""
    source = Path(__file__).parents[2] / "examples" / "hospitals.csv"
    rows = pd.read_csv(source)
    rows = rows[rows["hospital"].isin(names)]
    found = {}
    for name in names:
        found[name] = folder / f"{name}.csv"
        own = rows[rows["hospital"] == name].drop(columns="hospital")
        own.to_csv(found[name], index=False)
    found["all"] = folder / "all.csv"
    rows.to_csv(found["all"], index=False)
    return found


def tables_of(text: str) -> dict[str, Any]:
    """The tables of a small study of hospitals, with these algorithms."""
    start = """
    name = "sites"
    [data]
    name = "file"
    path = "elsewhere.csv"
    client = "hospital"
    target = "outcome"
    [split]
    name = "natural"
    test = 0.3
    [model]
    name = "logistic"
    """
    return tomllib.loads(start + text)


def study_with(tables: dict[str, Any], table: Any) -> Study:
    """The study of these tables, with a site's table as its data."""
    return study_of({**tables, "data": {}}, data=table)


class Running(NamedTuple):
    """A hub that serves members on the loopback."""

    hub: Hub
    port: int
    names: Sequence[str]
    masks: bool
    ends: list[Death]  # that have happened


@contextmanager
def hub_on_loopback(
    folder: Path,
    settings: HubSettings,
    names: Sequence[str] = NAMES,
    *,
    masks: bool = True,
    port: int = 0,
    crash: bool = False,
    methods: Sequence[str] = (),
    **options: Any,
) -> Iterator[Running]:
    """A hub in this process; if it shall `crash`, it ends without a word."""
    shown = [pem(party(name).certificate).encode() for name in names]
    ranks = {certificate_digest(one): rank for rank, one in enumerate(shown)}
    store = HubStore(folder / "hub.db")
    central = HubCoordinator(methods, len(names), store.server()) if methods else None
    hub = Hub(names, "run", store, settings, central=central, **options)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(min(0.1, settings.patience / 4)):
            hub.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        at = f"127.0.0.1:{port}"
        with serve(hub.answer, ranks, at, credentials_of("hub")) as port:
            yield Running(hub, port, names, masks, [])
            if not crash:
                hub.stop()
    finally:
        over.set()
        watcher.join()
        store.close()


class Killed(BaseException):
    """The end of a member, as by `kill -9`: nobody hears of it."""


class Death(NamedTuple):
    """When a member dies, and when it returns."""

    step: int
    kind: str  # of the message at which it dies
    back: int  # how many steps later it returns; 0: at once
    before: bool = True  # whether the message is lost, too


class DyingChannel:
    """A channel whose member dies at a message."""

    def __init__(self, channel: HubChannel, deaths: Sequence[Death]) -> None:
        self._channel = channel
        self._deaths = {(one.step, one.kind): one for one in deaths}
        self.dead: Death | None = None

    def ask(self, parcel: Any, *, patiently: bool = True) -> Any:
        if self.dead is not None:
            raise DisconnectedError("dead")
        death = self._deaths.get((parcel.header.get("step"), parcel.header["kind"]))
        if death is not None and death.before:
            self.dead = death
            raise Killed
        found = self._channel.ask(parcel, patiently=patiently)
        if death is not None:
            self.dead = death
            raise Killed
        return found

    def close(self) -> None:
        self._channel.close()


@contextmanager
def member_of(
    running: Running,
    name: str,
    folder: Path,
    deaths: Death | Sequence[Death] | None = None,
) -> Iterator[Member]:
    """A member of a running hub."""
    deaths = [deaths] if isinstance(deaths, Death) else list(deaths or ())
    address = f"127.0.0.1:{running.port}"
    channel: Any = HubChannel(address, credentials_of(name), "hub", give_up=20.0)
    if deaths:
        channel = DyingChannel(channel, deaths)
    store = MemberStore(folder / name)
    least = running.hub.settings.least
    trust = trust_in(running.names, name, folder / name, least)
    member = Member(channel, store, running.names, trust, masks=running.masks)
    member.group.refuse_program = lambda program: None
    try:
        yield member
    finally:
        member.close()
        store.close()


def run_site(
    running: Running,
    name: str,
    tables: dict[str, Any],
    path: Path,
    folder: Path,
    deaths: Death | Sequence[Death] | None = None,
) -> Any:
    """Trains the study at one site; gives its cells and the folder of its results."""
    deaths = [deaths] if isinstance(deaths, Death) else list(deaths or ())
    table = read_site_table(tables["data"], path, name)
    study = study_with(tables, table)
    results = Folder(folder / name / "results")
    results.create(study.tables(), {})
    while True:
        try:
            with member_of(running, name, folder, deaths) as member:
                return SiteRun(study, table, member, results).train("run"), results
        except Killed:
            died = member.channel.dead
        running.ends.append(died)
        deaths = [one for one in deaths if one.step > died.step]
        # If too few are left to go on, nobody waits for steps that do not come.
        end, back = time.monotonic() + 5.0, died.step + died.back
        while running.hub.step < back and time.monotonic() < end:
            time.sleep(0.01)


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(happened: Callable[[], bool], seconds: float = 15.0) -> None:
    """Waits until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen in time.")
        time.sleep(0.01)


def run_sites(
    folder: Path,
    tables: dict[str, Any],
    settings: HubSettings,
    deaths: Mapping[str, Death | Sequence[Death]] | None = None,
    ends: list[Death] | None = None,
    **options: Any,
) -> tuple[list[Any], dict[str, Any]]:
    """Trains the study at all sites, each in a thread."""
    files = site_files(folder)
    with hub_on_loopback(folder, settings, **options) as running:
        with ThreadPoolExecutor(len(NAMES)) as pool:
            futures = {
                name: pool.submit(
                    run_site,
                    *(running, name, tables, files[name], folder),
                    (deaths or {}).get(name),
                )
                for name in NAMES
            }
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                running.hub.stop()
        found = {name: future.result() for name, future in futures.items()}
        commits = running.hub.store.commits()
        if ends is not None:
            ends.extend(running.ends)
    return commits, found


def simulated(
    folder: Path, tables: dict[str, Any], commits: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """The final models of a simulation with the same participation."""
    options = {k: v for k, v in tables["data"].items() if k not in ("name", "path")}
    table = read_table(folder / "all.csv", **options)
    study = study_with(tables, table)
    (seed,) = study.run.seeds
    return simulated_models(study, seed, commits)

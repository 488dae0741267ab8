"""A site takes part in a run: from its checked files to its own results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checks import DisconnectedError, TrainingError
from ...records import Folder
from ...records.files import lock_folder
from ...study.identity import copies_of_modules
from .away import AwayKey, away_key
from .channel import HubChannel
from .joining import Joining, study_at
from .link import Channel, RunOver
from .member import Member
from .member_store import MemberStore
from .noise import SiteLedger
from .rules import Site
from .runs import SiteRun
from .serving import HEADERS
from .verbs import MemberTrust
from .wire import Parcel

if TYPE_CHECKING:
    from ...study import Study

Say = Callable[[str], None]

LEDGER = "ledger.jsonl"
"""The file with everything that private studies of a site may have cost."""

STORE = "member"
"""The folder of a member's own log, inside the folder of its results."""


class OpenHours:
    """A channel that is silent outside the hours of a site.

    The hub takes a silent member as lost, and the others go on. When the site is open
    again, the member replays what it missed.
    """

    def __init__(self, channel: Channel, site: Site, say: Say) -> None:
        """Wraps a channel; `say` is called when the site closes."""
        self._channel, self._site, self._say = channel, site, say

    def ask(self, parcel: Parcel, *, patiently: bool = True) -> Parcel:
        """The hub's answer to a message, which waits until the site is open."""
        if not self._site.is_open():
            if not patiently:
                raise DisconnectedError("the site is closed now.")
            self._wait()
        return self._channel.ask(parcel, patiently=patiently)

    def _wait(self) -> None:
        opens = self._site.opens()
        self._say(f"closed until {opens:%A %H:%M}, by `allow.hours` of this site")
        while not self._site.is_open():
            time.sleep(min(5.0, max(0.1, (opens - datetime.now()).total_seconds())))

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()


def folder_of(joining: Joining) -> Path:
    """The folder of a site's results of a run."""
    name = str(joining.tables.get("name", "study"))
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:60]
    return joining.site.folder / f"{plain}-{joining.run_name[:8]}"


def trust_of(joining: Joining, away: AwayKey) -> MemberTrust:
    """The keys of a member, and what it knows of the others."""
    roster, sites = joining.roster, joining.sites
    return MemberTrust(
        study=bytes.fromhex(roster.study),
        roster=bytes.fromhex(roster.hash),
        rank=joining.rank,
        key=joining.key,
        certificates=[seat.certificate for seat in roster.members],
        scale=sites.scale,
        largest=sites.largest_for(len(roster.members)),
        least=sites.least_members,
        away=away,
        away_keys={},
        bits=sites.bits,
    )


def ledger_of(joining: Joining) -> SiteLedger | None:
    """The ledger of a site, which all its private studies share."""
    if joining.tables.get("privacy") is None:
        return None
    allow, place = joining.site.allow, joining.site.folder / LEDGER
    return SiteLedger(place, allow.delta, allow.budget)


def _stored_tables(joining: Joining, study: Study) -> dict[str, Any]:
    """The study as the folder stores it, with the names of columns of the table.

    An exported model needs them: its table may have the target and the client, too.
    """
    tables, given = study.tables(), joining.tables.get("data", {})
    named = {key: given[key] for key in ("client", "target", "drop") if key in given}
    return {**tables, "data": {**tables["data"], **named}}


def take_part(joining: Joining, say: Say) -> Path:
    """Trains the study at a site; returns the folder of the site's own results.

    If the same site takes part again, it goes on where it stopped.

    Args:
        joining: the checked files of the site.
        say: called with lines for the user.

    Raises:
        TrainingError: if the hub has ended the run, with the reason.
        DisconnectedError: if somebody stopped the hub, or it cannot be reached.
    """
    study, table = study_at(joining)
    folder = Folder(folder_of(joining))
    with lock_folder(folder.path):
        folder.create(_stored_tables(joining, study), {})
        folder.copy_code(copies_of_modules(study))
        folder.begin_metrics()
        store = MemberStore(folder.path / STORE)
        if store.is_finished():
            store.close()
            say(f"the run is done at {joining.site.name}, and nothing is left to do")
            return folder.path
        say(f"connecting to {joining.site.hub}, and waiting for the other members")
        channel = HubChannel(
            joining.site.hub,
            joining.credentials(),
            joining.roster.hub.name,
            largest=joining.sites.message_bytes + HEADERS,
        )
        shown = OpenHours(channel, joining.site, say)
        trust = trust_of(joining, away_key(store.folder))
        names, masks = joining.roster.names, joining.sites.masks
        member = Member(shown, store, names, trust, masks=masks)
        if joining.sites.trust_coordinator:
            member.group.refuse_program = joining.site.refuse_program
        try:
            run = SiteRun(study, table, member, folder, say, ledger_of(joining))
            folder.export(run.train(joining.run_name))
            store.finish()
        except RunOver as error:
            raise _end_of(str(error)) from None
        finally:
            member.close()
            store.close()
    return folder.path


def _end_of(reason: str) -> Exception:
    """The error for a run that the hub has ended."""
    if reason.startswith("stopped"):
        return DisconnectedError(
            "somebody stopped the hub: run the same command again to continue when it "
            "is back."
        )
    return TrainingError(f"the run has {reason.rstrip('.')}.")

"""From the files of a site to a member that may join: everything is checked in order.

First the site's own file, then the study against it, then the roster, the key and the
certificate. Only then is code that the study names imported, and data are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...checks import InputError, Problems
from ...study.settings.sites import Sites, sites_of, study_hash
from .keys import Key, holds, pem, read_certificates, read_key
from .own_code import allow_modules
from .reading import content_of, tables_of
from .rosters import Roster, accept, read_roster, roster_problems
from .rules import Site, read_site, study_problems

if TYPE_CHECKING:
    from ...data.federation import Table
    from ...study import Study
    from .channel import Credentials

NEWEST = "rosters.toml"
"""The file in the folder of a site with the newest roster of each study."""


class Joining(NamedTuple):
    """A site whose files agree with each other, and may join."""

    site: Site
    tables: Mapping[str, Any]  # of the study
    folder: Path  # of the study
    roster: Roster
    rank: int
    key: Key

    @property
    def study(self) -> str:
        """The hash of the study."""
        return self.roster.study

    @property
    def sites(self) -> Sites:
        """The table [sites] of the study."""
        return sites_of(self.tables.get("sites", {}))

    @property
    def run_name(self) -> str:
        """A name of the run, the same at all members and at the hub."""
        return self.roster.run_name

    def credentials(self) -> Credentials:
        """What this site shows, and whom it believes: the hub of the roster alone.

        Another certificate with the name of the hub is refused, even if an authority of
        the roster has signed it.
        """
        from .channel import Credentials

        seat = self.roster.members[self.rank]
        return Credentials(
            "".join(map(pem, seat.certificates)).encode(),
            content_of("key", self.site.key),
            pem(self.roster.hub.certificate).encode(),
        )


def ready_to_join(study: Path, site_file: Path) -> Joining:
    """A site that may join a study, as far as its own files say.

    Raises:
        Problems: with everything that is wrong.
    """
    site, tables = read_site(site_file), tables_of("study", study)
    problems = study_problems(site, tables)
    name, roster = study_hash(tables), None
    key = _try(problems, lambda: read_key(site.key))
    certificates = _try(problems, lambda: read_certificates(site.certificate))
    roster = _try(problems, lambda: read_roster(site.roster))
    if roster is None or key is None or certificates is None:
        raise Problems(problems)
    if not holds(certificates[0], key):
        problems.append(
            f"the certificate {site.certificate} must be that of the key {site.key}."
        )
    problems += _roster_problems(roster, name)
    rank = _try(problems, lambda: roster.rank_named(site.name))
    if rank is not None:
        problems += _seat_problems(site, roster, rank, certificates[0])
    if problems or rank is None:
        raise Problems(problems)
    site.folder.mkdir(parents=True, exist_ok=True)
    accept(roster, name, site.folder / NEWEST)
    return Joining(site, tables, study.parent, roster, rank, key)


def _try(problems: list[str], read: Callable[[], Any]) -> Any:
    """What `read` gives; None if it raises, with its sentence as a problem."""
    try:
        return read()
    except Problems as error:
        problems += error.sentences
    except InputError as error:
        problems.append(str(error))
    return None


def _roster_problems(roster: Roster, name: str) -> list[str]:
    found = roster_problems(roster)
    if roster.study != name:
        found.insert(
            0,
            f"the roster must be for this study, whose hash is {name[:16]}..., but it "
            f"is for {roster.study[:16]}...: somebody changed one of them.",
        )
    return found


def _seat_problems(
    site: Site, roster: Roster, rank: int, certificate: Any
) -> list[str]:
    seat, found = roster.members[rank], []
    if seat.certificate != certificate:
        found.append(
            f"the certificate {site.certificate} must be that of {site.name} in the "
            "roster, but it is another one."
        )
    return found


def study_at(joining: Joining) -> tuple[Study, Table]:
    """The checked study, with the site's table as its data, and the table.

    Code that the study names is imported here, and only what the site allows.

    Raises:
        Problems: with everything that only a simulation can do.
    """
    allow_modules(joining.folder, joining.site.allow.modules)
    from ...study.config import study_of
    from ...study.settings.simulated import simulated_only
    from .site_data import read_site_table

    local, tables = joining.site.data, joining.tables
    data = {**tables.get("data", {}), **local}
    table = read_site_table(data, local["path"], joining.site.name)
    given = {key: value for key, value in tables.items() if key != "data"}
    study = study_of(given, data=table)
    members = len(joining.roster.members)
    joining.sites.refuse_few(members, study.run.participation)
    if problems := simulated_only(study):
        raise Problems(problems)
    return study, table

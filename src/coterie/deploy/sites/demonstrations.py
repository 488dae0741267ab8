"""Files for a demonstration of sites on one machine, with the keys of everybody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ...checks import InputError
from ...records.files import write
from ...study.settings.sites import study_hash
from .keys import new_authority, new_key, request, sign_request, write_certificates
from .reading import tables_of
from .rosters import approve, make_roster, write_roster


def demonstrate(study: Path, names: Sequence[str], to: Path, hub: str) -> list[Path]:
    """Makes a folder for the hub and one for each member, and returns them.

    Args:
        study: of all.
        names: of the members, in the order of the clients.
        to: the new folder.
        hub: the address of the hub, HOST:PORT.
    """
    tables = tables_of("study", study)
    if to.exists() and any(to.iterdir()):
        raise InputError(f"the folder {to} must be new or empty.")
    host = hub.rpartition(":")[0].strip("[]")
    folders = [to / name for name in ("hub", *names)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    root_key = new_key(to / "authority.key")
    root = new_authority(root_key, "authority")
    found, keys = {}, {}
    for name, folder in zip(("hub", *names), folders, strict=True):
        keys[name] = new_key(folder / f"{name}.key")
        asked = request(keys[name], name, [host] if name == "hub" else [])
        found[name] = sign_request(asked.encode(), root_key, root)
        write_certificates(folder / f"{name}.crt", [found[name]])
    members = [[found[name]] for name in names]
    roster = make_roster(study_hash(tables), [found["hub"]], members, [root])
    for name in names:
        roster = approve(roster, keys[name])
    for folder in folders:
        write_roster(folder / "roster.toml", roster)
    for name, folder in zip(names, folders[1:], strict=True):
        write(folder / "site.toml", tomli_w.dumps(_site(name, hub, tables)))
    return folders


def _site(name: str, hub: str, tables: dict[str, Any]) -> dict[str, Any]:
    """The file `site.toml` of a member, which allows the methods of this study."""
    entries = tables.get("algorithm", [])
    entries = entries if isinstance(entries, list) else [entries]
    allow: dict[str, Any] = {"methods": [entry["name"] for entry in entries]}
    sites = tables.get("sites", {})
    if not sites.get("masks", True) or sites.get("trust_coordinator"):
        allow["clear_rows"] = True
    if sites.get("trust_coordinator"):
        from .coordinator import programs_of

        found = {name.partition(":")[0] for name in programs_of(allow["methods"])}
        allow["programs"] = sorted(found)
    if "least_members" in sites:
        allow["least_members"] = sites["least_members"]
    if sites.get("modules"):
        allow["modules"] = sites["modules"]
    return {
        "name": name,
        "hub": hub,
        "roster": "roster.toml",
        "certificate": f"{name}.crt",
        "key": f"{name}.key",
        "folder": "runs",
        "data": {"path": f"{name}.csv"},
        "allow": allow,
    }

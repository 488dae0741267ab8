"""Builds the documentation site: `python docs/site/build_site.py`, or `make docs`.

It copies the pages of the repository to a folder of their own, adds what is made from
the source (the options of every command, the public names of every room), and runs
Zensical on them. Any warning ends the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from made_pages import command_sections, package_sections, room_page, rooms

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("reproductions/*/*.md")),
)
"""Pages that are not in `docs/`. On the site they are in the folder `project`."""

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_ROW = re.compile(r"\| \[(.+)\]\(([^)#]+\.md)\) \|")
_HEADING = re.compile(r"(##+) (.*)")


class Entry(NamedTuple):
    """A page in the navigation, or a group of entries (`place` is empty)."""

    title: str
    place: str
    entries: list[Entry]


def place_of(file: Path) -> Path:
    """Where a file of the repository is on the site."""
    inside = file.is_relative_to(DOCS)
    return file.relative_to(DOCS) if inside else "project" / file.relative_to(ROOT)


def linked(page: Path, text: str) -> Iterator[Path]:
    """Files of the repository to which a page links."""
    for _, _, target, _ in _LINK.findall(_FENCE.sub("", text)):
        file = (page.parent / target).resolve()
        if not re.match(r"[a-z]+:", target) and not file.is_dir():
            yield file


def moved(page: Path, text: str) -> str:
    """The text of a page, with links that lead to the same files on the site."""
    here = place_of(page).parent

    def link(found: re.Match[str]) -> str:
        words, between, target, after = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        file = (page.parent / target).resolve()
        if file.is_dir():  # a site shows files, not folders
            return words
        return f"[{words}{between}{os.path.relpath(place_of(file), here)}{after}"

    pieces, last = [], 0
    for fence in _FENCE.finditer(text):
        code = fence[0].replace(" no-run\n", "\n", 1)  # a mark for our tests
        pieces += [_LINK.sub(link, text[last : fence.start()]), code]
        last = fence.end()
    return "".join([*pieces, _LINK.sub(link, text[last:])])


def navigation(map_of_pages: str) -> list[Entry]:
    """Groups and pages of the site: headings and tables of `docs/index.md`."""
    root = Entry("", "", [])
    groups = [root]
    for line in map_of_pages.splitlines():
        if heading := _HEADING.match(line):
            depth = len(heading[1]) - 1
            groups = [*groups[:depth], Entry(heading[2], "", [])]
            groups[depth - 1].entries.append(groups[-1])
        elif row := _ROW.match(line):
            file = (DOCS / row[2]).resolve()
            title = row[1].replace("`", "")
            groups[-1].entries.append(Entry(title, str(place_of(file)), []))
    return root.entries


def write(file: Path, text: str) -> None:
    """Writes a file, and makes its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def stage(folder: Path) -> None:
    """Writes all that Zensical reads: pages, pictures and `zensical.toml`."""
    pages, packages = folder / "pages", rooms()
    added = {
        DOCS / "commands.md": command_sections(),
        DOCS / "api.md": package_sections(packages),
    }
    sources = [*DOCS.rglob("*.md"), *(ROOT / name for name in OUTSIDE)]
    files: set[Path] = set()
    for page in sources:
        text = page.read_text(encoding="utf-8")
        files.update(linked(page, text))
        write(pages / place_of(page), moved(page, text) + added.get(page, ""))
    for file in files.difference(sources):
        copy = pages / place_of(file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    for name, room in packages.items():
        write(pages / "api" / f"{name}.md", room_page(room))
    (pages / "site").mkdir()
    shutil.copyfile(DOCS / "site" / "iframe-worker.js", pages / "site/iframe-worker.js")
    write(folder / "zensical.toml", tomli_w.dumps(settings([*packages])))


def settings(packages: list[str]) -> dict[str, Any]:
    """The settings of the site with its navigation, in which every page is once."""
    found = tomllib.loads((DOCS / "site" / "zensical.toml").read_text(encoding="utf-8"))
    entries = navigation((DOCS / "index.md").read_text(encoding="utf-8"))
    reference = next(entry for entry in entries if entry.title == "Reference")
    names = [Entry(name, f"api/{name}.md", []) for name in packages]
    reference.entries.append(Entry("Packages", "", names))
    home = Entry("Home", "index.md", [])
    seen: set[str] = set()
    tables = [as_table(entry, seen) for entry in [home, *entries]]
    found["project"]["nav"] = [table for table in tables if table]
    return found


def as_table(entry: Entry, seen: set[str]) -> dict[str, Any] | None:
    """An entry of the navigation as Zensical reads it; None if all is seen already."""
    if not entry.entries:
        new = entry.place not in seen
        seen.add(entry.place)
        return {entry.title: entry.place} if new else None
    inner = [as_table(one, seen) for one in entry.entries]
    return {entry.title: [table for table in inner if table]}


def build(folder: Path, place: Path) -> str:
    """Builds the site in a working folder, moves it, and returns what was printed."""
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    shutil.rmtree(place, ignore_errors=True)
    shutil.move(folder / "built", place)
    return done.stdout


def main() -> None:
    """Builds the site into the folder `site`, or stops with what is wrong."""
    print(build(ROOT / ".site", ROOT / "site"), end="")
    print("Open site/index.html.")


if __name__ == "__main__":
    main()

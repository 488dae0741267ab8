"""What a site allows, from its file `site.toml`.

    name = "north"                     # of the member, as in the roster
    hub = "hub.example.org:8443"
    roster = "roster.toml"
    certificate = "north.crt"
    key = "north.key"
    folder = "runs"                    # of results, checkpoints and the log

    [data]
    path = "patients.csv"

    [allow]
    methods = ["local", "fedavg"]

A site takes part in nothing that this file does not allow. All problems of the file, or
of a study, are found at once. Paths are relative to the folder of the file.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...checks import (
    InputError,
    Problems,
    brief,
    expand_path,
    integer,
    number,
    suggestion,
)
from ...study.settings.sites import LOCAL, Sites, digests_of, sites_of
from .keys import refuse_name
from .reading import tables_of

Found = TypeVar("Found")

_FILES = ("roster", "certificate", "key")
_KEYS = ("name", "hub", *_FILES, "folder", "data", "allow")
_ALLOW = (
    *("methods", "programs", "modules", "largest_message", "least_members"),
    *("clear_rows", "budget", "delta", "hours"),
)
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(
    r"(?:(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))? +)?"
    r"(?P<from>\d\d:\d\d)-(?P<to>\d\d:\d\d)"
)
_PROGRAM = re.compile(r"\w+(\.\w+)*(:\w+)?")


@dataclass(frozen=True)
class Window:
    """Hours on some days in which a site takes part; minutes from midnight."""

    days: frozenset[int]  # 0 is Monday
    begins: int
    ends: int  # larger than 1440 if it ends on the next day

    def has(self, moment: datetime.datetime) -> bool:
        """Whether a local time lies in the window."""
        minute = 60 * moment.hour + moment.minute
        today, before = moment.weekday(), (moment.weekday() - 1) % 7
        if today in self.days and self.begins <= minute < self.ends:
            return True
        return before in self.days and minute + 1440 < self.ends


@dataclass(frozen=True)
class Permissions:
    """The table [allow]: what a site takes part in."""

    methods: tuple[str, ...]
    programs: tuple[str, ...] = ()  # of `central`, which see rows in the clear
    modules: Mapping[str, str] = field(default_factory=dict)  # own ones, by SHA-256
    largest_message: float = 64.0  # MB
    least_members: int = 3  # in a sum
    clear_rows: bool = False  # whether the hub may see single rows
    budget: float | None = None  # in epsilon
    delta: float = 1e-5
    hours: tuple[Window, ...] = ()  # (): always


@dataclass(frozen=True)
class Site:
    """A member: who it is, what it has, and what it allows."""

    name: str
    hub: str  # host:port
    roster: Path
    certificate: Path
    key: Path
    folder: Path
    data: Mapping[str, Any]
    allow: Permissions

    def is_open(self, moment: datetime.datetime | None = None) -> bool:
        """Whether the site takes part at a local time; by default now."""
        now = moment or datetime.datetime.now()
        hours = self.allow.hours
        return not hours or any(window.has(now) for window in hours)

    def opens(self, moment: datetime.datetime | None = None) -> datetime.datetime:
        """The first local time from now at which the site takes part."""
        now = moment or datetime.datetime.now()
        while not self.is_open(now):
            now = now.replace(second=0, microsecond=0) + datetime.timedelta(minutes=1)
        return now

    def refuse_program(self, program: Callable[..., Any]) -> None:
        """Refuses a program of `central` that the site does not allow."""
        name = f"{program.__module__}:{program.__qualname__}"
        if {name, program.__module__} & {*self.allow.programs}:
            return
        raise InputError(
            f"`allow.programs` of this site must name {brief(name)}, which would see "
            f"its rows at the hub; it names {_words_or_nothing(self.allow.programs)}."
        )


def read_site(path: Path) -> Site:
    """The site in a file.

    Raises:
        Problems: with everything that is wrong in the file.
    """
    return site_of(tables_of("site", path), path.parent)


def site_of(tables: Mapping[str, Any], folder: Path) -> Site:
    """The site in tables, whose paths are relative to this folder."""
    problems: list[str] = []
    for key in tables:
        if key not in _KEYS:
            problems.append(f"a site has no key {brief(key)}.{suggestion(key, _KEYS)}")
    site = _Form(problems, tables, "")
    name = site.take("name", _name, "")
    hub = site.take("hub", _address, "")
    paths = [site.take(key, _path, "") for key in _FILES]
    place = site.take("folder", _path, "", usual="runs")
    nothing: dict[str, Any] = {}
    data = site.take("data", _data, nothing)
    allow = site.take("allow", _table, nothing)
    sound = isinstance(tables.get("allow"), dict)
    allowed = _permissions(_Form(problems, allow, "allow."), sound)
    if problems:
        raise Problems(problems)
    roster, certificate, private, own = (_from(folder, p) for p in (*paths, place))
    if isinstance(data.get("path"), str):
        data = {**data, "path": str(_from(folder, data["path"]))}
    elif "path" in data:
        data = {**data, "path": [str(_from(folder, each)) for each in data["path"]]}
    return Site(name, hub, roster, certificate, private, own, data, allowed)


def _from(folder: Path, path: str) -> Path:
    return folder / expand_path("a path of the site", path)


@dataclass
class _Form:
    """Takes keys from a table, and collects what is wrong with them."""

    problems: list[str]
    table: Mapping[str, Any]
    prefix: str

    def take(
        self,
        key: str,
        check: Callable[[str, Any], Found],
        otherwise: Found,
        *,
        usual: Any = None,
    ) -> Found:
        """The checked value of a key; `otherwise` if it is wrong.

        A key without a `usual` value must be there.
        """
        name, value = f"{self.prefix}{key}", self.table.get(key, usual)
        if value is None:
            self.problems.append(f"a site needs `{name}`.")
            return otherwise
        try:
            return check(name, value)
        except InputError as error:
            self.problems.append(str(error))
            return otherwise


def _permissions(form: _Form, given: bool) -> Permissions:
    for key in form.table:
        if key not in _ALLOW:
            form.problems.append(
                f"[allow] has no option {brief(key)}.{suggestion(key, _ALLOW)}"
            )
    take, usual = form.take, Permissions(())
    no_budget = "budget" not in form.table
    return Permissions(
        take("methods", _words, (), usual=None if given else ()),
        take("programs", _programs, (), usual=()),
        take("modules", digests_of, {}, usual={}),
        take("largest_message", _megabytes, 1.0, usual=usual.largest_message),
        take("least_members", _members, 3, usual=usual.least_members),
        take("clear_rows", _truth, False, usual=usual.clear_rows),
        None if no_budget else take("budget", _positive, 1.0),
        take("delta", _probability, 1e-5, usual=usual.delta),
        take("hours", _windows, (), usual=()),
    )


def _name(key: str, value: Any) -> str:
    return refuse_name(key, value)


def _path(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"`{key}` must be a path, got {brief(value)}.")
    return value


def _table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"`{key}` must be a table, got {brief(value)}.")
    return value


def _data(key: str, value: Any) -> dict[str, Any]:
    table = _table(key, value)
    for option in table:
        if option not in LOCAL["data"]:
            raise InputError(
                f"`{key}` of a site may only have {', '.join(LOCAL['data'])}, because "
                f"the study says the rest, got {brief(option)}."
            )
    path = table.get("path")
    paths = path if isinstance(path, list) and path else [path]
    if not all(isinstance(each, str) and each.strip() for each in paths):
        raise InputError(
            f"`{key}.path` must be a file or a list of files, got {brief(path)}."
        )
    return table


def _address(key: str, value: Any) -> str:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("",) * 3
    sound = re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]", host)
    if not sound or not colon or not re.fullmatch(r"\d{1,5}", port):
        raise InputError(
            f"`{key}` must be HOST:PORT, such as hub.example.org:8443, got "
            f"{brief(value)}."
        )
    integer(key, int(port), at_least=1, at_most=65535)
    return str(value)


def _words(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(v, str) for v in value
    ):
        raise InputError(f"`{key}` must be a list of names, got {brief(value)}.")
    return tuple(value)


def _programs(key: str, value: Any) -> tuple[str, ...]:
    names = _words(key, value)
    for name in names:
        if not _PROGRAM.fullmatch(name):
            raise InputError(
                f"`{key}` must name modules or functions (module:function), got "
                f"{brief(name)}."
            )
    return names


def _megabytes(key: str, value: Any) -> float:
    return float(number(key, value, above=0, at_most=2000))


def _members(key: str, value: Any) -> int:
    return integer(key, value, at_least=1, at_most=1000)


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"`{key}` must be true or false, got {brief(value)}.")
    return value


def _positive(key: str, value: Any) -> float:
    return float(number(key, value, above=0))


def _probability(key: str, value: Any) -> float:
    return float(number(key, value, above=0, below=1))


def _windows(key: str, value: Any) -> tuple[Window, ...]:
    texts = [value] if isinstance(value, str) else value
    return tuple(_window(key, text) for text in _words(key, texts))


def _window(key: str, text: str) -> Window:
    """The window in a text such as `Mon-Fri 20:00-06:00`.

    >>> _window("hours", "20:00-06:00").has(datetime.datetime(2030, 1, 1, 5, 59))
    True
    """
    wrong = InputError(
        f"`{key}` must have texts such as 'Mon-Fri 20:00-06:00', got {brief(text)}."
    )
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        raise wrong
    named = [(found[part] or "").lower() for part in ("first", "last")]
    if any(day and day not in _DAYS for day in named):
        raise wrong
    first = _DAYS.index(named[0]) if named[0] else 0
    last = _DAYS.index(named[1]) if named[1] else first if named[0] else 6
    days = frozenset((first + more) % 7 for more in range((last - first) % 7 + 1))
    begins, ends = _minutes(found["from"]), _minutes(found["to"])
    if begins is None or ends is None or begins == 1440:
        raise wrong
    return Window(days, begins, ends if ends > begins else ends + 1440)


def _minutes(text: str) -> int | None:
    """Minutes from midnight, until 24:00; None if there is no such time."""
    hours, minutes = int(text[:2]), int(text[3:])
    found = 60 * hours + minutes
    return found if minutes < 60 and found <= 1440 else None


def _words_or_nothing(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def refuse_study(site: Site, tables: Mapping[str, Any]) -> None:
    """Refuses a study that the site does not allow, with all reasons.

    Args:
        site: the site.
        tables: of the study. They are not checked yet, because checking them imports
            the modules that they name.
    """
    if problems := study_problems(site, tables):
        raise Problems(problems)


def study_problems(site: Site, tables: Mapping[str, Any]) -> list[str]:
    """What a site does not allow in a study, one sentence each."""
    sites, allow = sites_of(_table("sites", tables.get("sites", {}))), site.allow
    problems = [
        *_method_problems(tables, allow),
        *_module_problems(tables, sites, allow),
    ]
    if sites.largest_message > allow.largest_message:
        problems.append(
            f"`sites.largest_message` must be at most {allow.largest_message:g} MB at "
            f"this site, got {sites.largest_message:g} MB."
        )
    if sites.least_members < allow.least_members:
        problems.append(
            f"`sites.least_members` must be at least {allow.least_members} at this "
            f"site, got {sites.least_members}."
        )
    if not allow.clear_rows:
        for key, wanted in (("masks", True), ("trust_coordinator", False)):
            if getattr(sites, key) != wanted:
                problems.append(
                    f"`sites.{key}` must be {str(wanted).lower()}, because "
                    "`allow.clear_rows` of this site is false: the hub would see its "
                    "rows."
                )
    return problems + _privacy_problems(tables, allow)


def _method_problems(tables: Mapping[str, Any], allow: Permissions) -> list[str]:
    entries = tables.get("algorithm", [])
    entries = entries if isinstance(entries, list) else [entries]
    tables_only = [entry for entry in entries if isinstance(entry, dict)]
    names = [entry["name"] for entry in tables_only if "name" in entry]
    problems = [] if names else ["a study between sites must name its [[algorithm]]s."]
    return problems + [
        f"`allow.methods` of this site must name {brief(name)} for this study; it "
        f"names {_words_or_nothing(allow.methods)}."
        for name in dict.fromkeys(names)
        if name not in allow.methods
    ]


def _module_problems(
    tables: Mapping[str, Any], sites: Sites, allow: Permissions
) -> list[str]:
    """What is wrong with the code that a study names, before any of it is imported."""
    from ...models.trust import named_modules

    problems = []
    for name in dict.fromkeys([*named_modules(tables), *sites.modules]):
        if name not in sites.modules:
            problems.append(
                f"`sites.modules` of the study must have the SHA-256 of the module "
                f"{brief(name)}, whose code it names."
            )
        elif name not in allow.modules:
            problems.append(
                f"`allow.modules` of this site must have the module {brief(name)}, "
                f"whose code the study names; it has "
                f"{_words_or_nothing([*allow.modules])}."
            )
        elif allow.modules[name] != sites.modules[name]:
            problems.append(
                f"the module {brief(name)} must have the SHA-256 "
                f"{allow.modules[name][:16]}..., which this site allows, but the study "
                f"has {sites.modules[name][:16]}...."
            )
    return problems


def _privacy_problems(tables: Mapping[str, Any], allow: Permissions) -> list[str]:
    if allow.budget is None:
        return []
    privacy = tables.get("privacy")
    if not isinstance(privacy, dict):
        return [
            f"the study must have a table [privacy], because this site has a budget, "
            f"epsilon {allow.budget:g}."
        ]
    problems, delta = [], privacy.get("delta", 1e-5)
    for key, value, most in (
        ("epsilon", privacy.get("epsilon"), allow.budget),
        ("delta", delta, allow.delta),
    ):
        if isinstance(value, int | float) and value > most:
            problems.append(
                f"`privacy.{key}` must be at most {most:g} at this site, got {value:g}."
            )
    return problems

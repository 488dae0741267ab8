"""What identifies a run: the tables of its study, and the content of its data.

The source of this package does not count. A cell's records name the versions that made
it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from .. import seeds
from ..checks import InputError, import_object
from ..data.federation import Table
from ..data.given import GIVEN
from ..privacy.mechanisms.partners import PartnerMechanism
from ..records.digests import code_digest
from ..records.versions import digest_of, sources_of
from .config import Study
from .ingredients import RECIPES, file_of

_OWN = ("name", "objective", "loss", "measures", "criterion")
"""Keys of settings that may say "module:name"."""


def identity_of(study: Study, read: Mapping[str, str]) -> str:
    """The study's name, fit for a file, and a hash of its settings and what it read."""
    text = settings_text(study, read)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', study.name)[:60]}-{digest}"


def settings_text(study: Study, read: Mapping[str, str]) -> str:
    """All settings of a study and what it read; other studies have other texts."""
    return json.dumps([study.tables(), read], sort_keys=True, default=str)


def whole_name(study: Study, read: Mapping[str, str]) -> str:
    """The text of a study, with digests of all files that the settings name.

    No other study has this text.
    """
    return settings_text(study, {**read, **settings_read(study)})


def data_name(study: Study, read: Mapping[str, str]) -> str:
    """A text that identifies a study's data in their ledger: digests, or table [data].

    Files count by their content alone, not by their names. A file in which one row
    differs is another data set here.
    """
    digests = sorted(v for k, v in read.items() if not k.startswith("the columns of "))
    made = {key: value for key, value in study.data.items() if key != "seed"}
    return json.dumps(digests or made, sort_keys=True, default=str)


def choosing_of(
    study: Study, seed: int, read: Mapping[str, str], secret: bytes | None = None
) -> PartnerMechanism | None:
    """How clients release what a choice of partners needs, with [privacy]."""
    if study.privacy is None:
        return None
    name = seeds.key(seed, "partners", whole_name(study, read))
    return study.privacy.partner_mechanism(name, secret)


def content_of(table: Table, name: str, seed: int | None) -> dict[str, str]:
    """Digests of the files that data were read from, or of data from a user's program.

    Args:
        table: the data.
        name: the name of the data set, or "module:function", or `GIVEN`.
        seed: the seed that the data were drawn with; None: they depend on no seed.
    """
    if ":" not in name and name != GIVEN:
        named: dict[str, list[Path]] = {}  # files in several folders may share a name
        for path in table.files:
            named.setdefault(path.name, []).append(path)
        read = {
            f"the data file {name}": digest_of(some) for name, some in named.items()
        }
        if table.schema is not None:
            schema = hashlib.blake2b(repr(table.schema).encode(), digest_size=8)
            read[f"the columns of {table.name}"] = schema.hexdigest()
        return read
    hashed = hashlib.blake2b(digest_size=8)
    for value in table.decode()._replace(files=()):
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hashed.update(flat.view(torch.uint8).numpy().data)
        else:
            hashed.update(repr(value).encode())
    drawn = "" if seed is None else f" with seed {seed}"
    what = f"the data {name}" if name == GIVEN else f"the data of {name}{drawn}"
    return {what: hashed.hexdigest()}


def settings_read(study: Study) -> dict[str, str]:
    """Digests of all other files, and the user's modules, that the settings name."""
    read = {}
    for key, text in _texts(study):
        file = file_of(text) if key in RECIPES else None
        if file is not None:
            read[f"`{key}` {text}"] = digest_of([file])
        elif key in _OWN and ":" in text:
            import_object(key, text)
            _refuse_no_file(key, text)
    for module, path in own_sources(study).items():
        _refuse_changed(module, path)
        read[f"the module {module}"] = digest_of([path])
    if study.graph is not None and (file := file_of(study.graph.edges)):
        try:
            read[f"`graph.edges` {study.graph.edges}"] = digest_of([file])
        except OSError as error:
            raise InputError(
                f"cannot read the graph {file}: {error.strerror}."
            ) from None
    if study.time is not None and study.time.trace:
        read[f"`time.trace` {study.time.trace}"] = digest_of([study.time.trace_file])
    return read


def _refuse_no_file(key: str, text: str) -> None:
    """Refuses code of a notebook or of a prompt, whose changes we cannot notice."""
    if text.partition(":")[0] == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None or not Path(file).is_file():
            raise InputError(
                f"`{key}` {text!r} is not in a file, so changes of it would not be "
                "noticed: write it into a module, such as mine.py."
            )


def _refuse_changed(module: str, path: Path) -> None:
    """Refuses a module whose file was changed after an earlier study had imported it.

    Otherwise, results of the old code would count as those of the new code. The digest
    is kept in the specification of the module, which is a new one after a new import.
    """
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if spec is None or spec.origin != str(path):
        return
    now = code_digest([path])
    if not hasattr(spec, "coterie_digest"):
        spec.coterie_digest = now
    if spec.coterie_digest != now:
        raise InputError(
            f"the module {module} was changed after Python had imported it: import it "
            "again with `importlib.reload`, or restart Python."
        )


def own_sources(study: Study) -> dict[str, Path]:
    """The files of the user's modules that the settings name, and of their helpers.

    The modules are imported already.
    """
    found: dict[str, Path] = {}
    for key, text in _texts(study):
        if key in _OWN and ":" in text:
            found |= sources_of(text.partition(":")[0])
    return {k: path for k, path in found.items() if k.split(".")[0] != "coterie"}


def copies_of_modules(study: Study) -> dict[str, Path]:
    """The files of `own_sources`, by the paths from which Python can import copies."""
    sources = own_sources(study)
    roots = set()
    for key, text in _texts(study):
        module = text.partition(":")[0]
        if key in _OWN and ":" in text and module in sources:
            place = sources[module]
            place = place.parent if place.name == "__init__.py" else place
            roots.add(place.parents[module.count(".")])
    found: dict[str, Path] = {}
    for module, path in sources.items():
        inside = [root for root in roots if root in path.parents]
        parts = module.partition(" in ")[0].split(".")
        parts = [*parts, "__init__.py"] if path.name == "__init__.py" else parts
        name = "/".join(parts).removesuffix(".py") + ".py"
        if inside:
            name = path.relative_to(min(inside, key=lambda r: len(r.parts))).as_posix()
        found[name] = path
    return found


def own_modules(study: Study) -> tuple[str, ...]:
    """The user's modules that define the model of a study, if it is not our model.

    The factory may come from a module that the study does not name.
    """
    module, own, attribute = str(study.model["name"]).partition(":")
    made = getattr(sys.modules.get(module), attribute, None) if own else None
    return () if made is None else (module, str(getattr(made, "__module__", module)))


def _texts(study: Study) -> Iterator[tuple[str, str]]:
    """All settings that may name a file or a module, with their keys."""
    settings = [*study.data.items(), *study.model.items()]
    for entry in study.algorithms:
        settings += [("name", entry.name), *entry.options.items(), *entry.tune.items()]
    for key, value in settings:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield key, text

"""Claims about own modules at a site: no other code than the allowed one runs."""

from __future__ import annotations

import py_compile
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from coterie.checks import import_object
from coterie.deploy.sites.own_code import HashedModules, allow_modules
from support.refusals import refuses

GOOD = "import helper_of_mine\n\ndef net(): return helper_of_mine.VALUE\n"
HELPER = "VALUE = 3\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "mine_at_site.py").write_text(GOOD)
    (tmp_path / "helper_of_mine.py").write_text(HELPER)
    yield tmp_path
    for name in ("mine_at_site", "helper_of_mine", "boxed", "boxed.inner"):
        sys.modules.pop(name, None)


def digests(folder: Path, *names: str) -> dict[str, str]:
    return {n: sha256((folder / f"{n}.py").read_bytes()).hexdigest() for n in names}


def test_allowed_modules_run_with_their_helpers(folder):
    allow_modules(folder, digests(folder, "mine_at_site", "helper_of_mine"))
    assert import_object("model.name", "mine_at_site:net")() == 3
    assert str(folder) not in sys.path
    found = sys.modules["mine_at_site"].__file__
    assert found == str(folder / "mine_at_site.py")
    assert not (folder / "__pycache__").exists()


def test_a_helper_that_the_site_does_not_name_is_not_found(folder):
    allow_modules(folder, digests(folder, "mine_at_site"))
    words = "No module named 'helper_of_mine'"
    refuses(words, import_object, "model.name", "mine_at_site:net")


def test_a_changed_module_or_helper_does_not_run(folder):
    allow_modules(folder, digests(folder, "mine_at_site", "helper_of_mine"))
    (folder / "helper_of_mine.py").write_text("raise SystemExit('it ran')\n")
    words = "the module helper_of_mine must have the SHA-256"
    refuses(words, import_object, "model.name", "mine_at_site:net")
    (folder / "mine_at_site.py").write_text("raise SystemExit('it ran')\n")
    words = "the module mine_at_site must have the SHA-256"
    refuses(words, import_object, "model.name", "mine_at_site:net")


def test_a_compiled_file_does_not_replace_a_module(folder):
    """Python would run it without a look at the source."""
    evil, path = folder / "evil.py", folder / "helper_of_mine.py"
    evil.write_text("VALUE = 66\n")
    cached = (
        folder / "__pycache__" / f"helper_of_mine.{sys.implementation.cache_tag}.pyc"
    )
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), str(cached), invalidation_mode=mode)
    allow_modules(folder, digests(folder, "mine_at_site", "helper_of_mine"))
    assert path.exists() and import_object("model.name", "mine_at_site:net")() == 3


def test_a_package_needs_every_module_that_it_uses(folder):
    inside = folder / "boxed"
    inside.mkdir()
    (inside / "__init__.py").write_text("from .inner import VALUE\n")
    (inside / "inner.py").write_text(HELPER)
    hashes = {
        "boxed": sha256((inside / "__init__.py").read_bytes()).hexdigest(),
        "boxed.inner": sha256(HELPER.encode()).hexdigest(),
    }
    finder = HashedModules(folder, hashes)
    assert finder.find_spec("os") is None
    allow_modules(folder, hashes)
    assert import_object("model.name", "boxed:VALUE") == 3
    (inside / "other.py").write_text("raise SystemExit('it ran')\n")
    words = "must have the module boxed.other, which boxed imports"
    refuses(words, import_object, "model.name", "boxed.other:VALUE")


def test_a_module_that_was_imported_before_is_refused(folder):
    refuses("was imported before", allow_modules, folder, {"json": "0" * 64})

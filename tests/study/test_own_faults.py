"""A user's code that raises gives one sentence, which names its place."""

from __future__ import annotations

import textwrap

import pytest
import torch

from coterie.checks import InputError
from coterie.records import Folder
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from support.study_runs import refused
from support.tiny_studies import LINEAR

FAULTY = """
    import torch
    from coterie.algorithms.local import local

    class Oops(Exception):
        pass

    def boom(*args, **options):
        raise Oops("no luck.\\nand more")

    def leaves(*args, **options):
        raise SystemExit(3)

    def needs(a, b, c):
        return 1

    def model(shape, outputs):
        class Own(torch.nn.Linear):
            def forward(self, x):
                return {}["missing"]
        return Own(shape[0], outputs)

    def begins(*, lr: float = 0.1):
        return local(lr=lr)._replace(init=boom)

    def third(*, lr: float = 0.1):
        good, seen = local(lr=lr), []
        def step(state, oracle, rng):
            seen.append(1)
            if len(seen) == 3:
                boom()
            return good.step(state, oracle, rng)
        return good._replace(step=step)
"""
IMPORTS = {
    "faulty_raises": "raise KeyError('x')",
    "faulty_exits": "raise SystemExit(3)",
    "faulty_syntax": "def f(:",
    "faulty_inside": "import faulty_raises",
}
WHERE = ["data", "model", "algorithm", "objective", "criterion"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with modules that cannot be used."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "faulty.py").write_text(textwrap.dedent(FAULTY))
    for name, text in IMPORTS.items():
        (folder / f"{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(folder))
    return tmp_path


def tables(where: str, value: str) -> dict:
    """A study that names the value there."""
    adaptive = {"name": "adaptive_all_for_one", "criterion": value}
    changes = {
        "data": {"data": {"name": value}},
        "model": {"model": {"name": value}},
        "algorithm": {"algorithm": [{"name": value}]},
        "objective": {"model": {"name": "linear", "objective": value}},
        "criterion": {"algorithm": [adaptive]},
    }
    return {**LINEAR, **changes[where]}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("faulty_raises", "KeyError: 'x' (faulty_raises.py, line 1)"),
        ("faulty_inside", "KeyError: 'x' (faulty_raises.py, line 1)"),
        ("faulty_exits", "SystemExit: 3 (faulty_exits.py, line 1)"),
        ("faulty_syntax", "SyntaxError: invalid syntax (faulty_syntax.py, line 1)"),
        ("faulty_nowhere", "No module named 'faulty_nowhere'"),
    ],
)
def test_a_module_that_does_not_import_is_named(own, where, module, reason):
    message = refused(tables(where, f"{module}:f"), own)
    assert message.endswith(f"'{module}:f' cannot be imported: {reason}.")


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("value", [".faulty:boom", "..faulty:boom", ":boom", "a b:c"])
def test_a_name_that_is_no_module_is_refused(own, where, value):
    message = refused(tables(where, value), own)
    assert message.endswith(f"with the whole name of the module, got {value!r}.")


@pytest.mark.parametrize(
    ("where", "value", "reason"),
    [
        ("data", "boom", "raised Oops: no luck (faulty.py, line 9)"),
        ("data", "leaves", "raised SystemExit: 3 (faulty.py, line 12)"),
        ("data", "needs", "[data] faulty:needs needs the option 'a'"),
        ("model", "boom", "raised Oops: no luck (faulty.py, line 9)"),
        ("model", "needs", "missing a required argument: 'c'"),
        ("model", "model", "does not fit the data `linear`"),
        ("algorithm", "boom", "raised Oops: no luck (faulty.py, line 9)"),
        ("algorithm", "begins", "raised Oops: no luck (faulty.py, line 9)"),
        ("algorithm", "needs", "the ingredient `a` is not known"),
        ("criterion", "boom", "raised Oops: no luck (faulty.py, line 9)"),
        ("criterion", "needs", "raised TypeError: needs() missing 2 required"),
        ("objective", "boom", "must be a coterie.models.Objective, got <function boom"),
    ],
)
def test_what_raises_when_called_is_named(own, where, value, reason):
    assert reason in refused(tables(where, f"faulty:{value}"), own)


def test_what_was_before_a_step_that_raises_is_kept(own):
    study = study_of(tables("algorithm", "faulty:third"))
    with pytest.raises(InputError, match=r"'faulty:third' raised Oops: no luck \(faul"):
        run_study(study, runs=own / "runs")
    (folder,) = (own / "runs").glob("[!.]*")
    cell = Folder(folder).cell("faulty:third", 0)
    assert cell.t == 2
    assert torch.isfinite(cell.state["x"]).all()


def test_errors_of_our_own_methods_are_not_blamed_on_the_user(tmp_path, monkeypatch):
    from coterie.algorithms import ALGORITHMS

    def broken(*, lr: float = 0.1):
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setitem(ALGORITHMS, "broken", broken)
    with pytest.raises(ZeroDivisionError):
        run_study(study_of(tables("algorithm", "broken")), runs=tmp_path)

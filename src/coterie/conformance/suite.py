"""Checks that every algorithm must pass, and that you can run on your own algorithm.

    for finding in check_algorithm(my_factory):
        print(*finding)

The ingredients of a factory are its positional parameters; `study.ingredients` makes
them by their names. The options have their defaults unless you give others. A check is
a function of a `Case`. If the algorithm fails, the check raises an AssertionError with
a sentence. If methods of this kind do not promise the tested property, the check raises
`NotApplicable`. A method can have two forms, called faces: in rounds and in time. If a
check is for both faces, it runs in each face of the method. The checks use the
federations of `conformance.federations`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple, get_args

from ..checks import InputError, suggestion
from ..types import NeedsClasses
from . import both_faces, in_rounds, in_time
from .cases import Case, Face, Factory, NotApplicable
from .federations import small_federation

_FACES: tuple[Face, ...] = get_args(Face)


class Finding(NamedTuple):
    """The outcome of one check."""

    check: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str
    face: Face = "rounds"


class Check(NamedTuple):
    """A check, and the faces of a method to which it applies."""

    run: Callable[[Case], None]
    faces: tuple[Face, ...] = _FACES


CHECKS: dict[str, Check] = {
    check.run.__name__.removeprefix("check_"): check
    for check in (
        Check(both_faces.check_inputs_untouched),
        Check(in_time.check_runs_do_not_meet, ("time",)),
        Check(both_faces.check_same_seed_same_result),
        Check(both_faces.check_no_global_randomness),
        Check(both_faces.check_shapes_and_dtype),
        Check(both_faces.check_info),
        Check(both_faces.check_one_client),
        Check(both_faces.check_relabelling),
        Check(in_rounds.check_identical_clients, ("rounds",)),
        Check(both_faces.check_client_by_client),
        Check(in_rounds.check_divided, ("rounds",)),
        Check(both_faces.check_resuming),
        Check(in_rounds.check_local_limit, ("rounds",)),
        Check(in_rounds.check_inactive_rows, ("rounds",)),
        Check(in_rounds.check_inactive_state, ("rounds",)),
        Check(in_rounds.check_inactive_data, ("rounds",)),
        Check(in_rounds.check_in_place, ("rounds",)),
        Check(in_rounds.check_without_noise, ("rounds",)),
        Check(in_rounds.check_releases, ("rounds",)),
        Check(in_time.check_without_delays, ("time",)),
        Check(in_time.check_work, ("time",)),
        Check(in_time.check_nobody_waits, ("time",)),
        Check(both_faces.check_bad_options),
        Check(both_faces.check_bad_ingredients),
        Check(both_faces.check_known_optimum),
        Check(both_faces.check_newcomers),
    )
}


def faces_of(
    factory: Factory, options: Mapping[str, object] | None = None
) -> tuple[Face, ...]:
    """The faces (in rounds, in time) of the algorithms that a factory makes.

    Raises:
        InputError: for ingredients and options that do not exist.
    """
    case = Case(factory, options or {})
    try:
        faces = case.build(small_federation()).faces
    except Exception:  # of any kind; the checks will report it
        return ("rounds",)
    return tuple(face for face in _FACES if face in faces)


def check_algorithm(
    factory: Factory,
    *,
    options: Mapping[str, object] | None = None,
    skip: Collection[str] = (),
    report: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """What each check found about the algorithms of a factory, in rounds and in time.

    Args:
        factory: `factory(*ingredients, **options)` gives an Algorithm.
        options: options other than the defaults.
        skip: names of checks that the method does not promise to pass.
        report: a function that is called with each finding as soon as it is known.

    Raises:
        InputError: for an ingredient, option or check that does not exist.
    """
    for name in skip:
        if name not in CHECKS:
            raise InputError(f"there is no check {name!r}.{suggestion(name, CHECKS)}")
    findings = []
    for face in faces_of(factory, options):
        case = Case(factory, options or {}, face)
        for name, check in CHECKS.items():
            if face not in check.faces:
                continue
            finding = _run_check(name, check, case, name in skip)
            findings.append(finding)
            if report is not None:
                report(finding)
    return findings


def _run_check(name: str, check: Check, case: Case, skipped: bool) -> Finding:
    if skipped:
        return Finding(name, "skipped", "skipped on request.", case.face)
    try:
        check.run(case)
    except (NotApplicable, NeedsClasses) as reason:
        return Finding(name, "skipped", str(reason), case.face)
    except AssertionError as error:
        return Finding(name, "failed", str(error), case.face)
    except Exception as error:
        # Your algorithm may raise any error; the other checks still run.
        return Finding(name, "failed", f"{type(error).__name__}: {error}", case.face)
    first = (check.run.__doc__ or "").split("\n")[0]
    return Finding(name, "passed", first, case.face)

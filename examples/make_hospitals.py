"""Makes hospitals.csv and new_patients.csv: invented patients of eight hospitals.

In four of the hospitals age and cholesterol weigh much, in the others pressure does.
Python's own generator gives the same files on every machine.
"""

from __future__ import annotations

import random
from pathlib import Path

FIRST = ("Aarau", "Bern", "Chur", "Thun")
SECOND = ("Basel", "Lugano", "Luzern", "Zug")
HEADER = "hospital,age,pressure,cholesterol,sex,smokes,pain,outcome"


def patient(rng: random.Random, hospital: str) -> str:
    """One line: who came where, and whether ill."""
    age, pressure = rng.gauss(58, 11), rng.gauss(132, 16)
    cholesterol, sex = rng.gauss(5.4, 1.0), rng.choice("fm")
    smokes, pain = rng.random() < 0.3, rng.choice(("none", "mild", "strong"))
    one, two = (1.6, 0.1) if hospital in FIRST else (0.1, 1.6)
    risk = one * (age - 58) / 11 + one * (cholesterol - 5.4)
    risk += 1.4 * two * (pressure - 132) / 16 + 0.8 * smokes + (pain == "strong") - 0.6
    ill = "ill" if risk + rng.gauss(0, 0.5) > 0 else "well"
    shown = "" if rng.random() < 0.08 else f"{pressure:.0f}"
    cells = (f"{age:.0f}", shown, f"{cholesterol:.1f}", sex, str(smokes).lower(), pain)
    return ",".join((hospital, *cells, ill))


def main() -> None:
    """Writes both files beside this one."""
    here, rng = Path(__file__).parent, random.Random(8)
    names = sorted(FIRST + SECOND)
    lines = [patient(rng, name) for name in names for _ in range(60)]
    (here / "hospitals.csv").write_text("\n".join((HEADER, *lines)) + "\n")
    lines = [patient(rng, "Chur") for _ in range(40)]
    (here / "new_patients.csv").write_text("\n".join((HEADER, *lines)) + "\n")


if __name__ == "__main__":
    main()

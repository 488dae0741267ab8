"""Makes plants.csv and new_batches.csv: invented batches of seven plants.

All plants run the same process, and each has few batches. Files are written as a German
spreadsheet does: semicolons, decimal commas, dates such as 31.01.2026. Python's own
generator gives the same files on every machine.
"""

from __future__ import annotations

import datetime
import random
from pathlib import Path

PLANTS = ("Essen", "Gera", "Hof", "Jena", "Kiel", "Trier", "Ulm")
HEADER = "batch;plant;made;heat;flow;humidity;line;yield_kg"
BATCHES = 30


def batch(rng: random.Random, number: int, plant: str) -> str:
    """One line: what was done where, and how many kilograms came of it."""
    heat, flow, humidity = rng.gauss(180, 10), rng.gauss(5, 1), rng.gauss(40, 6)
    kilograms = 12_000 + 60 * (heat - 180) + 400 * (flow - 5)
    kilograms += rng.gauss(0, 500) - 12 * (humidity - 40)
    day = datetime.date(2026, 1, 1) + datetime.timedelta(rng.randrange(200))
    shown = "" if rng.random() < 0.06 else f"{humidity:.1f}"
    cells = (f"B{number:05d}", plant, f"{day:%d.%m.%Y}", f"{heat:.1f}", f"{flow:.2f}")
    line = rng.choice(("north", "south"))
    text = ";".join((*cells, shown, line, f"{kilograms:.0f}"))
    return (
        text.replace(f"{day:%d.%m.%Y}", "@")
        .replace(".", ",")
        .replace("@", f"{day:%d.%m.%Y}")
    )


def main() -> None:
    """Writes both files beside this one."""
    here, rng = Path(__file__).parent, random.Random(5)
    names = [name for name in PLANTS for _ in range(BATCHES)]
    lines = [batch(rng, number, name) for number, name in enumerate(names)]
    (here / "plants.csv").write_text("\n".join((HEADER, *lines)) + "\n")
    lines = [batch(rng, len(names) + k, "Jena") for k in range(30)]
    (here / "new_batches.csv").write_text("\n".join((HEADER, *lines)) + "\n")


if __name__ == "__main__":
    main()

"""Files as people have them: other separators, dates, identifiers, gaps, slips."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

HOSPITALS = {"Genève": 60, "Bern": 40, "Zürich": 30, "Chur": 24, "Sion": 2}


def hospital_rows(rng: np.random.Generator) -> list[list[str]]:
    """A header and 156 patients of five hospitals, who have one class or the other."""
    head = ["Fall-ID", "Spital", "Eintritt", "Alter", "CRP", "Bemerkung", "Diagnose"]
    rows = []
    for place, count in HOSPITALS.items():
        for k in range(count):
            age = int(rng.integers(20, 90))
            ill = k % 2 == 0 if count < 5 else age + rng.normal(0, 10) > 55
            crp = "<5" if k % 10 == 3 else f"{rng.gamma(2, 10):.1f}".replace(".", ",")
            note = f"Patient {place} {k} kam und ging nach {age} Tagen"
            rows.append(
                [
                    f"F{place[:2]}{k:05d}",
                    place.upper() if k == 7 else place,
                    f"{k % 28 + 1:02d}.{k % 12 + 1:02d}.20{k % 5 + 18}",
                    "" if k % 13 == 5 else str(age),
                    crp,
                    note,
                    ("krank" if ill else "gesund") + " " * (k % 9 == 2),
                ]
            )
    rows[0][-1] = ""
    return [head, *rows]


def write_hospital(folder: Path) -> Path:
    """Semicolons, decimal commas and an older encoding, with dates and identifiers."""
    path = folder / "spital.csv"
    rows = hospital_rows(np.random.default_rng(0))
    text = "\r\n".join(";".join(row) for row in rows)
    path.write_bytes(text.encode("cp1252"))
    return path


def write_plants(folder: Path) -> Path:
    """Seven plants with a quantity in kilograms, as TSV in gzip."""
    rng = np.random.default_rng(1)
    lines = ["record_no\tplant\tday\ttemperature\tline\toutput_kg"]
    for k in range(140):
        heat = rng.normal(80, 8)
        kilograms = 20000 + 300 * (heat - 80) + rng.normal(0, 500)
        line = "ABC"[k % 3]
        day = f"2024-{k % 12 + 1:02d}-{k % 28 + 1:02d}"
        lines.append(
            f"{1000 + 3 * k}\tplant {k % 7}\t{day}\t{heat:.1f}\t{line}\t{kilograms:.0f}"
        )
    path = folder / "plants.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def write_sites(folder: Path) -> Path:
    """A folder with a file for each site; true and false with blanks and case."""
    sites = folder / "sites"
    sites.mkdir()
    rng = np.random.default_rng(2)
    for place in ("east", "north", "south"):
        head = "Age, dose ,healthy" if place == "north" else "age,dose,healthy"
        rows = [
            f"{rng.integers(20, 90)},{rng.normal():.2f},"
            f"{('TRUE', 'true ', ' False')[k % 3]}"
            for k in range(24)
        ]
        (sites / f"{place}.csv").write_text("\n".join([head, *rows]))
    return sites


def write_ratings(folder: Path) -> Path:
    """Classes that are numbers from 1, and a column that is the target in disguise."""
    rng = np.random.default_rng(3)
    lines = ["shop|visits|zip|rating|verdict"]
    for k in range(120):
        stars = int(rng.integers(1, 4))
        words = ("poor", "fair", "good")[stars - 1]
        lines.append(
            f"shop {k % 4}|{stars + rng.normal():.3f}|{8000 + k % 5}|{stars}|{words}"
        )
    path = folder / "ratings.txt"
    path.write_text("\n".join(lines))
    return path


def write_wide(folder: Path) -> Path:
    """Sixty columns of numbers, an index without a name, and weights in kilograms."""
    rng = np.random.default_rng(4)
    genes = [f"gene{j}" for j in range(60)]
    lines = [",".join(["", "clinic", *genes, "weight_kg"])]
    for k in range(60):
        cells = [f"{value:.3f}" for value in rng.normal(size=60)]
        lines.append(
            ",".join([str(k), "abc"[k % 3], *cells, f"{rng.normal(70, 9):.1f}"])
        )
    path = folder / "wide.csv"
    path.write_text("\n".join(lines))
    return path


WRITERS = {
    "hospital": write_hospital,
    "plants": write_plants,
    "sites": write_sites,
    "ratings": write_ratings,
    "wide": write_wide,
}
"""Five kinds of files."""

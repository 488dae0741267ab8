"""Patients of a few hospitals, as people have them in a CSV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HOSPITALS = ("Basel", "Bern", "Chur", "Zug")


def write_hospitals(
    path: Path, *, names: tuple[str, ...] = HOSPITALS, patients: int = 40, seed: int = 0
) -> Path:
    """Writes ages, pressures, sexes and smoking, with gaps, and who is ill."""
    rng = np.random.default_rng(seed)
    lines = ["hospital,age,pressure,sex,smokes,outcome"]
    for place, name in enumerate(names):
        for _ in range(patients):
            age, sex = rng.normal(55 + 3 * place, 12), rng.choice(["f", "m"])
            pressure = rng.normal(130, 15)
            smokes = rng.choice(["true", "false"])
            risk = (age - 55) / 12 + (pressure - 130) / 15 + (smokes == "true") - 0.5
            ill = "ill" if risk + rng.normal() > 0 else "well"
            shown = "" if rng.random() < 0.1 else f"{pressure:.1f}"
            lines.append(f"{name},{age:.0f},{shown},{sex},{smokes},{ill}")
    path.write_text("\n".join(lines) + "\n")
    return path

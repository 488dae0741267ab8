"""Cells that were trained before, in this study or another, are not trained again.

A cell is one entry's training on one seed. Its key says what it was made from: data,
split, model, run settings, the method with its options, and the code. Two cells with
the same key have the same results.

- `keys` makes the key of a cell.
- `places` writes down the key of each cell of a run, and where a key was trained.
- `continuing` says whether a cell can go on to more rounds.
- `reusing` brings cells into a run folder before training.
"""

from __future__ import annotations

from .reusing import Reuse

__all__ = ["Reuse"]

"""Where the results of a study are."""

from __future__ import annotations

from pathlib import Path

from coterie.records.keys import digests_with_key
from coterie.study.config import Study
from coterie.study.identity import identity_of, settings_read
from coterie.study.setup import data_of


def folder_of(study: Study, runs: Path | str = "runs") -> Path:
    """The folder in which a study is run."""
    read = digests_with_key(data_of(study).read | settings_read(study), Path(runs))
    return Path(runs) / identity_of(study, read)

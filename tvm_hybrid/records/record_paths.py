"""The record files that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

from microkernels.base.logs import logger

RECORDS_VARIABLE = "TVM_HYBRID_RECORDS"
NO_RECORDS = "none"
"""Value of the variable that disables all records, including those of this package."""


def default_record_paths() -> list[Path]:
    """The existing files that `TVM_HYBRID_RECORDS` names, separated as in PATH."""
    paths: list[Path] = []
    if records_refused():
        return paths
    for name in os.environ.get(RECORDS_VARIABLE, "").split(os.pathsep):
        if name and Path(name).is_file():
            paths.append(Path(name))
        elif name:
            logger.warning("%s names %s, which is not a file", RECORDS_VARIABLE, name)
    return paths


def records_refused() -> bool:
    """Whether `TVM_HYBRID_RECORDS` disables all records."""
    return os.environ.get(RECORDS_VARIABLE) == NO_RECORDS

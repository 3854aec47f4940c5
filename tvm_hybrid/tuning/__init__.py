"""Tuning: finds fast configurations by measuring, and keeps them in records.

In: a model. Out: a record file, which later compilations read. The entry is `tune_model`: it tunes
how contractions are arranged (`tune_arrangements`), layouts on request (`joint_layout`), then
regions (`tune_regions`, one `TuningTask` each).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tune_model import tune
    from .tune_result import StopTuning, Trial, TuneResult

__all__ = ["StopTuning", "Trial", "TuneResult", "tune"]

_HOMES = {
    "StopTuning": "tune_result",
    "Trial": "tune_result",
    "TuneResult": "tune_result",
    "tune": "tune_model",
}


def __getattr__(name: str) -> Any:
    # Imported on use: compiling with records, or running a worker, does not need the tuner.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

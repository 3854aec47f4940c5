"""Tuning: measures configurations in worker processes, keeps records, finds the best again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tune_model import tune

__all__ = ["tune"]


def __getattr__(name: str) -> Any:
    # Imported on use: a compilation with records, or a worker, does not need the tuner.
    if name == "tune":
        from .tune_model import tune

        return tune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

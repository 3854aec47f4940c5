"""What `import tvm` runs: registers our target tags and pipeline, and does nothing else.

TVM calls `register` through the entry-point group "tvm.backends" at the end of its own import.
Whatever costs time is put off until it is used.
"""

from __future__ import annotations

from typing import Any

PIPELINE = "tvm_hybrid"

_registered = False


def register() -> None:
    """Makes TVM know `tvm_hybrid/<arch>` targets and the pipeline "tvm_hybrid"."""
    global _registered
    if _registered:
        return
    _registered = True
    from tvm import relax

    from .target_tags import register_tags

    register_tags()
    relax.register_pipeline(PIPELINE)(_pipeline)


def _pipeline() -> Any:
    from .byoc import build_pipeline

    return build_pipeline()

"""Decision: why an operator was or was not taken, and which kernel and config a region got.

Passes append to a DecisionLog; `explain` shows it. Nothing falls back without leaving one here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for one node of the graph.

    Attributes
    ----------
    node : str
        Name of the node's value in the graph.
    op : str
        The operator, or the operators of a region joined by " + ".
    taken : bool
        True if one of our templates builds it; False if it is left to the generic schedule.
    function : str
        The kernel's name in the compiled module; "" if it has none of its own.
    kernel : str
        The microkernel or schedule that runs.
    config : dict
        The template's configuration.
    source : str
        Where the configuration comes from: "default", "record FILE:LINE", "shipped record ...",
        "borrowed from ...".
    reason : str
        Why, in words.
    on_vectors : str
        Why products of it stay on vectors, if the target has tiles (AMX); "" if none does.
    at_run_time : str
        What its kernel decides when it runs, if sizes of it are open; "" if none are.
    flops : int
        Operations of the anchor, of a sample if sizes are open; 0 if not counted.
    workload : str
        The region's key.
    origins : tuple of str
        The nodes of an ONNX model that it is about, each with its operator: "conv1 (Conv)".
    """

    node: str
    op: str
    taken: bool
    function: str = ""
    kernel: str = ""
    config: dict[str, Any] = {}
    source: str = ""
    reason: str = ""
    on_vectors: str = ""
    at_run_time: str = ""
    flops: int = 0
    workload: str = ""
    origins: tuple[str, ...] = ()


DecisionLog = list[Decision]

# The "operators" of decisions about no operator.
LAYOUTS = "layouts"  # of a block
REORDER = "reorder"  # that is in no region
TENSORIZE = "tensorize"  # a sum of products that no operator of a template is
NOTES = (LAYOUTS, TENSORIZE)  # that are no operators left without a template


def uses_tiles(decisions: Sequence[Decision]) -> bool:
    """Whether one of the kernels multiplies on AMX tiles."""
    return any("amx_" in decision.kernel for decision in decisions)


def uses_half_tiles(decisions: Sequence[Decision]) -> bool:
    """Whether one of them multiplies float16, which not every CPU with AMX does."""
    return any("amx_fp16_" in decision.kernel for decision in decisions)

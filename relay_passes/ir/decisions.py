"""Decision: why an operator was taken or not, and which kernel and config a region got.

Passes append to a DecisionLog; `explain` shows it. Every fallback leaves a decision here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for one node of the graph.

    Attributes
    ----------
    node : str
        Name of the node's value in the graph.
    op : str
        The operator, or the operators of a region joined by " + ".
    taken : bool
        True if one of our templates builds it; False if it falls back to the generic schedule.
    function : str
        The kernel's name in the compiled module; "" if the node has no kernel of its own.
    kernel : str
        The microkernel or schedule that runs.
    config : dict
        The template's configuration.
    source : str
        Where the configuration comes from: "default", "record FILE:LINE", "shipped record ...",
        "borrowed from ...".
    reason : str
        The reason, in words.
    on_vectors : str
        Why its products run on vectors although the target has tiles (AMX); else "".
    at_run_time : str
        What its kernel decides at run time, if it has dynamic sizes; else "".
    flops : int
        Operations of the anchor, for a sample of dynamic sizes; 0 if not counted.
    workload : str
        The region's key.
    origins : tuple of str
        The nodes of an ONNX model that it comes from, each with its operator: "conv1 (Conv)".
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

# `op` of decisions that are not about an operator.
LAYOUTS = "layouts"  # of a block
REORDER = "reorder"  # one outside any region
TENSORIZE = "tensorize"  # a sum of products that is no operator of a template
NOTES = (LAYOUTS, TENSORIZE)  # these are no operators without a template


def uses_tiles(decisions: Sequence[Decision]) -> bool:
    """Whether any kernel multiplies on AMX tiles."""
    return any("amx_" in decision.kernel for decision in decisions)


def uses_half_tiles(decisions: Sequence[Decision]) -> bool:
    """Whether any kernel multiplies float16 on tiles, which not every CPU with AMX can."""
    return any("amx_fp16_" in decision.kernel for decision in decisions)

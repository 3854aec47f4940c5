"""Keeps the resizing of images whole, which torch would take apart into gathers.

F.interpolate(x, scale_factor=2)  ->  torch.ops.tvm_hybrid.resize2d(x, height, width, ...)
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F

from ..frontend.aten.resize import METHODS, is_exact


@torch.library.custom_op("tvm_hybrid::resize2d", mutates_args=())  # type: ignore[untyped-decorator]
def resize2d(
    x: torch.Tensor, height: int, width: int, mode: str, align_corners: bool
) -> torch.Tensor:
    """Images of another size, as `F.interpolate` makes them."""
    corners = None if mode == "nearest" else align_corners
    return F.interpolate(x, (height, width), mode=mode, align_corners=corners)


@resize2d.register_fake  # type: ignore[untyped-decorator]
def _shape(x: Any, height: int, width: int, mode: str, align_corners: bool) -> Any:
    kept = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else None
    result = x.new_empty((*x.shape[:2], height, width))
    return result if kept is None else result.to(memory_format=kept)


def keep_resizes(graph: Any) -> None:
    """Replaces calls in a graph of TorchDynamo, which may still run in eager mode.

    Sizes have to be known, and to say where pixels lie.
    """
    changed = False
    for node in graph.graph.find_nodes(op="call_function", target=F.interpolate):
        arguments = _arguments(node)
        if arguments is None:
            continue
        changed = True
        with graph.graph.inserting_before(node):
            target = torch.ops.tvm_hybrid.resize2d.default
            resized = graph.graph.call_function(target, arguments)
        resized.meta.update(node.meta)
        node.replace_all_uses_with(resized)
        graph.graph.erase_node(node)
    if changed:
        graph.recompile()


def _arguments(node: Any) -> tuple[Any, ...] | None:
    given = inspect.signature(F.interpolate).bind(*node.args, **node.kwargs)
    given.apply_defaults()
    x, mode = given.arguments["input"], given.arguments["mode"]
    before, after = x.meta["example_value"].shape, node.meta["example_value"].shape
    if len(before) != 4 or mode not in METHODS or given.arguments["antialias"]:
        return None
    factors = given.arguments["scale_factor"]
    if given.arguments["recompute_scale_factor"] or factors is None:
        factors = None
    elif not isinstance(factors, (tuple, list)):
        factors = (factors, factors)
    corners = bool(given.arguments["align_corners"])
    if not is_exact((*before[2:], *after[2:]), None if corners else factors):
        return None
    return x, *after[2:], mode, corners

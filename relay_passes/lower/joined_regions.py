"""Finds the regions whose results are joined: `concat_in_place` changes their kernels one by one.

lv = fused_conv2d(x, w)
lv1 = R.reshape(lv, (64, 56, 56))
lv2 = R.concat((lv1, y))             # fused_conv2d is such a region
"""

from __future__ import annotations

from tvm import IRModule, relax

from relay_passes.ir.graph import DataflowGraph, is_call, op_name
from relay_passes.ir.region_functions import is_region_function
from relay_passes.ir.traits import RESHAPES


def joined_regions(mod: IRModule) -> set[relax.GlobalVar]:
    """The functions that concatenations read, directly or through reshapes."""
    return {
        gvar
        for _, function in mod.functions_items()
        if isinstance(function, relax.Function) and not is_region_function(function)
        for block in function.body.blocks
        if isinstance(block, relax.DataflowBlock)
        and any(op_name(binding.value) == "relax.concat" for binding in block.bindings)
        for gvar in _in_block(DataflowGraph(block))
    }


def _in_block(graph: DataflowGraph) -> set[relax.GlobalVar]:
    found: set[relax.GlobalVar] = set()
    for binding in graph.bindings:
        if op_name(binding.value) != "relax.concat":
            continue
        tensors = binding.value.args[0]
        for tensor in tensors.fields if isinstance(tensors, relax.Tuple) else ():
            source = graph.definition(tensor)
            while is_call(source, *RESHAPES):
                source = graph.definition(source.args[0])
            if isinstance(source, relax.Call) and isinstance(source.op, relax.GlobalVar):
                found.add(source.op)
    return found

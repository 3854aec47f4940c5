"""Ranges: one kernel computes scale and zero point of a dynamic quantisation with several users.

Before

    ...dynamic_quantize's chain from x to scale and zero_point...
    q = R.quantize(x, scale, zero_point)

After

    lv = fused_quantization_range(x)                     # f32[2]
    scale = R.reshape(R.strided_slice(lv, 0, 1), [])
    zero_point = R.astype(R.reshape(R.strided_slice(lv, 1, 2), []), "uint8")
    q = R.quantize(x, scale, zero_point)

The region's body is the chain. Regions that need the scale or the zero point read the range itself
(`DataflowGraph.item_of_range`), so that the slices are rarely computed. If a tensor is quantised
for a single product with a constant weight, its chain stays: the product's region takes it in.
"""

from __future__ import annotations

from tvm import IRModule, relax

from relay_passes.ir.dynamic_quantize import DynamicQuantize, match_dynamic_quantize
from relay_passes.ir.functions import named_pass, region_function, substitute
from relay_passes.ir.graph import DataflowGraph, known_tensor, region_tensor
from relay_passes.ir.rewrite import Bindings, rewrite_blocks
from tir_schedules.core.region import Region, Tensor

from .integer_anchor import feeds_one_product

OP = "quantization_range"


@named_pass
def quantization_ranges(mod: IRModule, fuse: bool = True) -> IRModule:
    """The pass; it comes right before `partition`.

    Without `fuse` no product takes a chain in, and every range has a kernel.
    """
    builder = relax.BlockBuilder(mod)
    return rewrite_blocks(builder, lambda block: _rewrite(builder, DataflowGraph(block, fuse)))


def _rewrite(builder: relax.BlockBuilder, graph: DataflowGraph) -> list[relax.Binding] | None:
    chains: dict[relax.Var, DynamicQuantize] = {}
    for position in range(len(graph.bindings)):
        chain = match_dynamic_quantize(graph, position)
        if chain is None or region_tensor(chain.x) is None:
            continue
        if not feeds_one_product(graph, chain.q):  # whose kernel finds the range itself
            chains[chain.scale] = chain
    if not chains:
        return None
    out = Bindings()
    zero_points = {chain.zero_point for chain in chains.values()}
    for binding in graph.bindings:
        chain = chains.get(binding.var)
        if chain is not None:
            gvar = builder.add_func(_region_function(graph, chain), f"fused_{OP}")
            out.name = str(chain.scale.name)
            both = relax.DataflowVar(f"{out.name}range", relax.TensorType((2,), "float32"))
            out.bindings.append(relax.VarBinding(both, relax.Call(gvar, [chain.x], ret_ty=both.ty)))
            scale = out.emit(relax.op.strided_slice(both, [0], [0], [1]))
            out.bind(chain.scale, relax.op.reshape(scale, ()))
            zero_point = out.emit(relax.op.strided_slice(both, [0], [1], [2]))
            zero_point = out.emit(relax.op.reshape(zero_point, ()))
            out.bind(chain.zero_point, relax.op.astype(zero_point, "uint8"))
        elif binding.var not in zero_points:
            out.bindings.append(binding)
    return out.bindings


def _region_function(graph: DataflowGraph, chain: DynamicQuantize) -> relax.Function:
    """The chain as a function of x, its results side by side."""
    tensor = known_tensor(chain.x)
    region = Region(
        op=OP,
        inputs=(Tensor(tensor.shape, tensor.dtype),),
        output=Tensor((2,), "float32"),
        attrs=chain.attributes,
    )
    parameter = relax.Var("x", chain.x.ty)

    def emit(inner: relax.BlockBuilder) -> relax.Expr:
        values: dict[relax.Expr, relax.Expr] = {chain.x: parameter}
        for position in chain.positions[:-1]:
            var = graph.bindings[position].var
            values[var] = inner.emit(substitute(graph.value(position), values))
        zero_point = inner.emit(relax.op.astype(values[chain.zero_point], "float32"))
        both = (values[chain.scale], zero_point)
        return relax.op.concat([inner.emit(relax.op.reshape(number, (1,))) for number in both])

    return region_function(region, [parameter], emit)

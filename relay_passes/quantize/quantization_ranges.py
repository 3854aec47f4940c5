"""Ranges: scale and zero point of a dynamic quantisation with several users come from one kernel.

Before

    ...dynamic_quantize's chain from x to scale and zero_point...
    q = R.quantize(x, scale, zero_point)

After

    lv = fused_quantization_range(x)                     # f32[2]
    scale = R.reshape(R.strided_slice(lv, 0, 1), [])
    zero_point = R.astype(R.reshape(R.strided_slice(lv, 1, 2), []), "uint8")
    q = R.quantize(x, scale, zero_point)

The region's body is the chain. Regions that need the scale or the zero point read the range itself
(`DataflowGraph.item_of_range`), so that the slices are rarely computed. The chain of a tensor that
is quantised for one product with a constant weight stays: that product's region takes it in.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.blocks import Bindings
from relay_passes.ir.graph import DataflowGraph, static_tensor
from relay_passes.regions.integer_anchor import feeds_one_product
from relay_passes.regions.partition import COMPOSITE, PREFIX, REGION, is_region_function
from tir_schedules.core.region import Region, Tensor

from .dynamic_quantize import DynamicQuantize, match_dynamic_quantize

OP = "quantization_range"


def quantization_ranges(fuse: bool = True) -> ir.transform.Pass:
    """The pass; it comes right before `partition`.

    Without `fuse` no product takes a chain in, and every range has a kernel.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.quantization_ranges")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        for gvar, function in list(mod.functions_items()):
            if isinstance(function, relax.Function) and not is_region_function(function):
                builder.update_func(gvar, _function(builder, function, fuse))
        return relax.transform.DeadCodeElimination()(builder.get())

    return run


def _function(builder: relax.BlockBuilder, function: relax.Function, fuse: bool) -> relax.Function:
    blocks = [
        _block(builder, block, fuse) if isinstance(block, relax.DataflowBlock) else block
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _block(
    builder: relax.BlockBuilder, block: relax.DataflowBlock, fuse: bool
) -> relax.DataflowBlock:
    graph = DataflowGraph(block, fuse)
    chains: dict[relax.Var, DynamicQuantize] = {}
    for position in range(len(graph.bindings)):
        chain = match_dynamic_quantize(graph, position)
        if chain is None or static_tensor(chain.x) is None:
            continue
        if not feeds_one_product(graph, chain.q):  # whose kernel finds the range itself
            chains[chain.scale] = chain
    if not chains:
        return block
    out = Bindings()
    zero_points = {chain.zero_point for chain in chains.values()}
    for binding in graph.bindings:
        chain = chains.get(binding.var)
        if chain is not None:
            _emit(builder, out, graph, chain)
        elif binding.var not in zero_points:
            out.bindings.append(binding)
    return relax.DataflowBlock(out.bindings)


def _emit(
    builder: relax.BlockBuilder, out: Bindings, graph: DataflowGraph, chain: DynamicQuantize
) -> None:
    """The call, and the two numbers taken out of its result."""
    gvar = builder.add_func(_region_function(graph, chain), f"fused_{OP}")
    both = relax.DataflowVar("range", relax.TensorType((2,), "float32"))
    out.bindings.append(relax.VarBinding(both, relax.Call(gvar, [chain.x], ret_ty=both.ty)))

    def item(index: int) -> relax.Var:
        part = out.emit(relax.op.strided_slice(both, [0], [index], [index + 1]))
        return relax.op.reshape(part, ())

    out.bind(chain.scale, item(0))
    out.bind(chain.zero_point, relax.op.astype(out.emit(item(1)), "uint8"))


def _region_function(graph: DataflowGraph, chain: DynamicQuantize) -> relax.Function:
    """The chain as a function of x, its results side by side."""
    tensor = static_tensor(chain.x)
    assert tensor is not None
    region = Region(
        op=OP,
        inputs=(Tensor(tensor.shape, tensor.dtype),),
        output=Tensor((2,), "float32"),
    )
    parameter = relax.Var("x", chain.x.ty)
    inner = relax.BlockBuilder()
    attrs = {COMPOSITE: PREFIX + OP, REGION: region.to_json()}
    with inner.function("region", [parameter], attrs=attrs, private=True):
        with inner.dataflow():
            values: dict[relax.Expr, relax.Expr] = {chain.x: parameter}
            for position in chain.positions[:-1]:
                call = graph.value(position)
                assert isinstance(call, relax.Call)
                mapped = [values.get(arg, arg) for arg in call.args]
                emitted = inner.emit(relax.Call(call.op, mapped, call.attrs, call.ty_args))
                values[graph.bindings[position].var] = emitted
            numbers = (
                values[chain.scale],
                inner.emit(relax.op.astype(values[chain.zero_point], "float32")),
            )
            parts = [inner.emit(relax.op.reshape(number, (1,))) for number in numbers]
            output = inner.emit_output(relax.op.concat(parts))
        inner.emit_func_output(output)
    return inner.get()["region"]

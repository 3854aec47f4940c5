"""Partition: puts every anchor, with the operators fused with it, into a function of its own.

Before

    lv = R.matmul(x, const_w)
    lv1 = R.add(lv, const_b)
    gv = R.nn.relu(lv1)

After

    gv = fused_matmul(x, const_w, const_b)

    @R.function(private=True)
    def fused_matmul(x, w, b):
        R.func_attr({"Composite": "tvm_hybrid.matmul", "tvm_hybrid.region": "{...}"})
        ...the three operators...

The attribute is the Region as JSON; the body stays ordinary Relax and keeps the meaning.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import IRModule, relax

from microkernels.base.errors import Argument, CompileError
from microkernels.base.tvm_compat.relax import function_adder
from microkernels.isa import Isa, isa_named
from relay_passes.ir import dynamic_quantize, functions
from relay_passes.ir.axes import permutation
from relay_passes.ir.decisions import NOTES, Decision, DecisionLog
from relay_passes.ir.functions import named_pass, region_function, substitute
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, op_name, region_tensor
from relay_passes.ir.moving_operators import moved_weights, weights_of
from relay_passes.ir.rewrite import Bindings, rewrite_blocks, spliced
from relay_passes.ir.traits import RESHAPES
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for

from .fusible_calls import ACC, CAST_DTYPES, STEPS, VALUE_DTYPES, EpilogueSteps, Value, plain_step
from .integer_anchor import Anchor, feeds_one_product
from .match_anchors import MATCHERS, match_conversion
from .merge_regions import Add, Merge, region_call


@named_pass
def partition(
    mod: IRModule,
    isa: Isa,
    decisions: DecisionLog,
    strict: bool = False,
    fuse: bool = True,
    dynamic_weights: bool = False,
    rounds: bool = False,
) -> IRModule:
    """The pass, for one instruction set; notes which operators it leaves, and why.

    If `strict`, it raises CompileError if it leaves a call for which there is a template. Without
    `fuse` every region is an anchor alone: one operator, with the meaning of its operands (zero
    points, narrow weights) and the order in which they are stored. With `dynamic_weights`,
    parameters after the first `num_input` of a function are weights. With `rounds`, products with
    weights of few bits may round both operands to bfloat16, which AMX tiles multiply.
    """
    builder = relax.BlockBuilder(mod)
    weights = weights_of(mod) if dynamic_weights else set()
    partitioner = _Partitioner(function_adder(builder, mod, functions.REGION), isa, decisions)

    def rewritten(block: relax.DataflowBlock) -> list[relax.Binding]:
        graph = DataflowGraph(block, fuse)
        graph.weights = moved_weights(graph.bindings, weights)
        graph.rounds = rounds and isa.includes(isa_named("amx"))
        graph.programs = dict(mod.functions_items())
        if fuse:
            graph.range_items.update(dynamic_quantize.ranges_in_place(graph))
        return partitioner.block(graph)

    written = rewrite_blocks(builder, rewritten)
    left = [
        f"{d.op} ({d.node}): {d.reason}" for d in decisions if not d.taken and d.op not in NOTES
    ]
    if strict and left:
        raise CompileError(
            Argument("strict"),
            f": no template takes {'; '.join(left)}. Compile without ",
            Argument("strict"),
            " to run these by generic schedules",
        )
    return written


class _Partitioner:
    """Rewrites the blocks of one module."""

    def __init__(self, add: Add, isa: Isa, decisions: DecisionLog) -> None:
        self.add, self.isa, self.decisions = add, isa, decisions

    def block(self, graph: DataflowGraph) -> list[relax.Binding]:
        """The block with every region replaced by one call."""
        regions: dict[int, Growth] = {}
        # Conversions are matched last: most become part of the regions around them.
        for anchor_at in (self.anchor_at, match_conversion):
            for position in range(len(graph.bindings)):
                anchor = None if position in graph.taken else anchor_at(graph, position)
                if anchor is None:
                    continue
                growth = grow(graph, anchor, lambda region: self.reject(region) is None)
                if growth is not None:
                    graph.taken.update(growth.members)
                    graph.read.update(anchor.inputs, (x for x, _ in growth.epilogue.operands))
                    regions[growth.members[-1]] = growth
        calls = {at: self.call(graph, growth) for at, growth in sorted(regions.items())}
        return spliced(graph, calls, graph.taken)

    def anchor_at(self, graph: DataflowGraph, position: int) -> Anchor | None:
        """The anchor at a position, if a template can build it; else None."""
        binding, call = graph.bindings[position], graph.value(position)
        match = MATCHERS.get(op_name(call))
        anchor = None if match is None else match(graph, position, call)
        if anchor is None:  # an ordinary operator
            return None
        reason = anchor if isinstance(anchor, str) else self.reject(anchor.region())
        if reason is not None and isinstance(anchor, Anchor) and anchor.otherwise:
            anchor = replace(anchor, op=anchor.otherwise, otherwise="")
            reason = self.reject(anchor.region())
        if reason is None and isinstance(anchor, Anchor):
            return anchor
        node, name = str(binding.var.name), op_name(binding.value).removeprefix("relax.")
        self.decisions.append(Decision(node=node, op=name, taken=False, reason=reason or ""))
        return None

    def reject(self, region: Region | None) -> str | None:
        """Why no template builds a region, or None."""
        if region is None:
            return "a shape is not known at compile time"
        return template_for(region.op).rejection(region, self.isa)

    def call(self, graph: DataflowGraph, growth: Growth) -> list[relax.Binding]:
        """The bindings that replace a region: reshaped operands, and the call."""
        anchor, epilogue = growth.anchor, growth.epilogue

        def fill(inner: relax.BlockBuilder, values: dict[relax.Expr, relax.Expr]) -> None:
            inlined = sorted({*epilogue.inlined} - {*anchor.absorbed})
            for position in (*anchor.absorbed, *inlined, *growth.members):
                value = functions.renamed(graph.value(position), values)
                values[graph.bindings[position].var] = inner.emit(value)

        given = (*anchor.inputs, *(expr for expr, _ in epilogue.operands))
        merge = Merge(tuple(growth.members), growth.region(), given)
        return region_call(self.add, graph, merge, fill)


# Ranges: one kernel computes scale and zero point of a dynamic quantisation with several users.
#
# Before
#
#     ...dynamic_quantize's chain from x to scale and zero_point...
#     q = R.quantize(x, scale, zero_point)
#
# After
#
#     lv = fused_quantization_range(x)                     # f32[2]
#     scale = R.reshape(R.strided_slice(lv, 0, 1), [])
#     zero_point = R.astype(R.reshape(R.strided_slice(lv, 1, 2), []), "uint8")
#     q = R.quantize(x, scale, zero_point)
#
# The region's body is the chain. Regions that need the scale or the zero point read the range
# itself (`DataflowGraph.item_of_range`), so the slices are rarely computed. If a tensor is
# quantised for a single product with a constant weight, its chain stays: the product's region
# includes it.


RANGE = "quantization_range"


@named_pass
def quantization_ranges(mod: IRModule, fuse: bool = True) -> IRModule:
    """The pass; it must run right before `partition`.

    Without `fuse` no product includes a chain, and every range has a kernel.
    """
    builder = relax.BlockBuilder(mod)
    return rewrite_blocks(builder, lambda block: _rewrite(builder, DataflowGraph(block, fuse)))


def _rewrite(builder: relax.BlockBuilder, graph: DataflowGraph) -> list[relax.Binding] | None:
    chains: dict[relax.Var, dynamic_quantize.DynamicQuantize] = {}
    for position in range(len(graph.bindings)):
        chain = dynamic_quantize.match_dynamic_quantize(graph, position)
        if chain is None or region_tensor(chain.x) is None:
            continue
        if not feeds_one_product(graph, chain.q):  # that product's kernel finds the range itself
            chains[chain.scale] = chain
    if not chains:
        return None
    out = Bindings()
    zero_points = {chain.zero_point for chain in chains.values()}
    for binding in graph.bindings:
        chain = chains.get(binding.var)
        if chain is not None:
            gvar = builder.add_func(_region_function(graph, chain), f"fused_{RANGE}")
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


def _region_function(
    graph: DataflowGraph, chain: dynamic_quantize.DynamicQuantize
) -> relax.Function:
    """The chain as a function of x that returns scale and zero point in one tensor."""
    tensor = known_tensor(chain.x)
    region = Region(
        op=RANGE,
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


# Grows a region: finds the operators after an anchor that are computed in its registers.
#
# Operators are added in order while they are fusible. Then the region is reduced to its largest
# part with exactly one value that is needed outside. Reshapes that only regroup leading dimensions
# do not end a region, and a final permutation may become part of the store.


MAX_OPERANDS = 12
MAY_BE_INLINED = {  # operators that `fusible_calls` computes again in the regions that read them
    *("relax.dequantize", "relax.astype", "relax.multiply"),
    *("relax.strided_slice", "relax.reshape"),
}
FLAT_ROWS = ("matmul", "weight_only_matmul")  # their templates only see rows and columns


@dataclass
class Growth:
    """A region while it grows.

    Attributes
    ----------
    members : list of int
        Positions of the bindings inside, in order; the anchor is the first.
    result : relax.Var
        The only value that is needed outside.
    epilogue : EpilogueSteps
        The steps after the anchor.
    """

    anchor: Anchor
    output: Tensor
    members: list[int]
    result: relax.Var
    epilogue: EpilogueSteps

    def copy(self) -> Growth:
        """An independent copy, to return to."""
        return replace(self, members=list(self.members), epilogue=self.epilogue.copy())

    def region(self) -> Region:
        """The region so far, its values numbered."""
        base = self.anchor.region()
        assert base is not None
        return base.replace(
            operands=tuple(tensor for _, tensor in self.epilogue.operands),
            output=self.output,
            epilogue=self.epilogue.numbered(),
        )


Accepts = Callable[[Region], bool]
"""Whether the template can build a region."""


def grow(graph: DataflowGraph, anchor: Anchor, accepts: Accepts) -> Growth | None:
    """The largest region around an anchor; None if the anchor alone cannot be built.

    Parameters
    ----------
    graph : DataflowGraph
        The block; if its `fuse` is False, the region is the anchor alone.
    anchor : Anchor
        The operator to start from.
    accepts : callable
        Whether the template can build a region.
    """
    var = graph.bindings[anchor.position].var
    assert anchor.output is not None  # else no template could build it
    epilogue = EpilogueSteps(anchor.output.shape, {var: ACC})
    if anchor.attrs.get("a_scale") == "dynamic":
        items = (graph.item_of_range(graph.bindings[p].var) for p in anchor.absorbed)
        epilogue.own_range = next(item[0] for item in items if item is not None)
    growth = Growth(anchor, anchor.output, [anchor.position], var, epilogue)
    if anchor.op == "elementwise":  # the anchor's own operator is its first step
        growth.members = []
        epilogue.values = {anchor.inputs[0]: ACC}
        if not _absorb(graph, growth, anchor.position) or not accepts(growth.region()):
            return None
    if not graph.fuse:
        return growth
    best = growth.copy()
    queue = list(graph.users.get(var, ()))
    heapq.heapify(queue)
    seen: set[int] = set()
    while queue:
        position = heapq.heappop(queue)
        if position in seen:
            continue
        seen.add(position)
        trial = growth.copy()
        taken = position in graph.taken
        if taken or not _absorb(graph, trial, position) or not accepts(trial.region()):
            if op_name(graph.value(position)) in MAY_BE_INLINED:
                continue
            break  # it needs a value of the region, so no later value will be the only one needed
        growth = trial
        var = graph.bindings[position].var
        for user in graph.users.get(var, ()):
            heapq.heappush(queue, user)
        inside = {*growth.members, *growth.epilogue.inlined}
        made = [graph.bindings[member].var for member in growth.members]
        escaping = [v for v in made if graph.escapes(v, inside)]
        if escaping == [var] and str(var.ty.dtype) == growth.output.dtype:
            growth.result = var
            best = growth.copy()
    return _with_output_permutation(graph, best, accepts)


def _absorb(graph: DataflowGraph, growth: Growth, position: int) -> bool:
    """Adds one binding to the region if it is fusible."""
    binding = graph.bindings[position]
    call = binding.value
    output = region_tensor(binding.var)
    name = op_name(call)
    if output is None or "out_axes" in growth.anchor.attrs or not isinstance(call, relax.Call):
        return False
    if name in RESHAPES:
        value = _through_reshape(growth, call.args[0], output)
        if value is None:
            return False
        growth.epilogue.values[binding.var] = value
    else:
        if output.shape != growth.output.shape or output.dtype not in (*VALUE_DTYPES, *CAST_DTYPES):
            return False
        # Fusible if its operator has steps: the result has the shape of the region's values.
        value = STEPS.get(name, plain_step)(graph, growth.epilogue, call)
        if value is None or len(growth.epilogue.operands) > MAX_OPERANDS:
            return False
        growth.epilogue.values[binding.var] = value
        if output.dtype != "bool":
            growth.output = Tensor(growth.output.shape, output.dtype)
    growth.members.append(position)
    return True


def _through_reshape(growth: Growth, source: relax.Expr, output: Tensor) -> Value | None:
    """The value before a reshape that keeps the last dimension; None for any other reshape."""
    epilogue, before = growth.epilogue, growth.output.shape
    if source not in epilogue.values or growth.anchor.op not in FLAT_ROWS:
        return None
    if not output.shape or output.shape[-1] != before[-1]:
        return None
    operands = []
    for expr, tensor in epilogue.operands:
        if all(extent == 1 for extent in tensor.shape[:-1]):
            shape = tensor.shape[-1:]
        elif tensor.shape[:-1] == before[:-1]:
            shape = (*output.shape[:-1], tensor.shape[-1])
        else:
            return None
        operands.append((expr, Tensor(shape, tensor.dtype)))
    epilogue.operands = operands
    epilogue.shape = output.shape
    growth.output = Tensor(output.shape, growth.output.dtype)
    return epilogue.values[source]


def _with_output_permutation(graph: DataflowGraph, growth: Growth, accepts: Accepts) -> Growth:
    """Moves a permutation that is the result's only use into the store of a batch_matmul."""
    user = graph.only_user(growth.result)
    if growth.anchor.op != "batch_matmul" or user is None or user in graph.taken:
        return growth
    call = graph.value(user)
    if not is_call(call, "relax.permute_dims") or call.attrs.axes is None:
        return growth
    anchor = growth.anchor
    permuted = growth.copy()
    permuted.anchor = replace(anchor, attrs={**anchor.attrs, "out_axes": permutation(call)})
    if not accepts(permuted.region()):
        return growth
    permuted.members.append(user)
    permuted.result = graph.bindings[user].var
    return permuted

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

from collections.abc import Mapping
from dataclasses import replace

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.errors import Argument, CompileError
from microkernels.isa import Isa, isa_named
from relay_passes.ir.decisions import NOTES, Decision, DecisionLog
from relay_passes.ir.dynamic_quantize import ranges_in_place
from relay_passes.ir.functions import (
    emit_as_used,
    is_region_function,
    region_function,
    region_of,
    substitute,
)
from relay_passes.ir.graph import DataflowGraph, op_name, region_tensor, relax_shape
from relay_passes.ir.moving_operators import moved_weights, weights_of
from relay_passes.ir.rewrite import rewrite_blocks
from tir_schedules.core.region import Region
from tir_schedules.core.template import has_template, template_for

from .anchor import Anchor
from .grow_epilogue import Growth, grow
from .match_anchors import match_anchor, match_conversion


def partition(
    isa: Isa,
    decisions: DecisionLog,
    strict: bool = False,
    fuse: bool = True,
    open_weights: bool = False,
    rounds: bool = False,
) -> ir.transform.Pass:
    """The pass, for one instruction set; notes what it leaves and why.

    If `strict`, it raises CompileError when it leaves a call that a template is there for. Without
    `fuse` every region is an anchor alone: one operator, with what its operands mean (zero points,
    narrow weights) and in which order they are stored. With `open_weights`, parameters behind the
    first `num_input` of a function are weights. If it `rounds`, products by weights of few bits may
    round both operands to bfloat16, which AMX tiles multiply.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.partition")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        weights = weights_of(mod) if open_weights else set()
        partitioner = _Partitioner(builder, isa, decisions, fuse, weights)
        partitioner.programs = dict(mod.functions_items())
        partitioner.rounds = rounds and isa.includes(isa_named("amx"))
        written = rewrite_blocks(builder, partitioner.block)
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

    return run


class _Partitioner:
    """Rewrites the blocks of one module."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        isa: Isa,
        decisions: DecisionLog,
        fuse: bool,
        weights: set[relax.Expr],
    ) -> None:
        self.builder, self.isa, self.decisions, self.fuse = builder, isa, decisions, fuse
        self.weights, self.rounds = weights, False
        self.programs: Mapping[ir.GlobalVar, ir.BaseFunc] = {}

    def block(self, block: relax.DataflowBlock) -> list[relax.Binding]:
        """The block with every region replaced by one call."""
        graph = DataflowGraph(block, self.fuse)
        graph.weights = moved_weights(graph.bindings, self.weights)
        graph.rounds = self.rounds
        graph.programs = self.programs
        if self.fuse:
            graph.range_items.update(ranges_in_place(graph))
        regions: dict[int, Growth] = {}
        # Conversions come last: most become part of the regions around them.
        for region_at in (self.region_at, self.conversion_at):
            for position in range(len(graph.bindings)):
                if position in graph.taken:
                    continue
                growth = region_at(graph, position)
                if growth is not None:
                    graph.taken.update(growth.members)
                    graph.read.update(growth.anchor.inputs, (e for e, _ in growth.operands))
                    regions[growth.members[-1]] = growth
        bindings: list[relax.Binding] = []
        for position, binding in enumerate(graph.bindings):
            if position in regions:
                bindings += self.call(graph, regions[position])
            elif position not in graph.taken:
                bindings.append(binding)
        return bindings

    def region_at(self, graph: DataflowGraph, position: int) -> Growth | None:
        """The region whose anchor stands at a position, or None."""
        anchor = match_anchor(graph, position)
        if anchor is None:
            return None
        reason = anchor if isinstance(anchor, str) else self.reject(anchor.region())
        if reason is not None and isinstance(anchor, Anchor) and anchor.otherwise:
            anchor = replace(anchor, op=anchor.otherwise, otherwise="")
            reason = self.reject(anchor.region())
        if reason is not None or isinstance(anchor, str):
            self.leave(graph, position, reason or "")
            return None
        return grow(graph, anchor, lambda region: self.reject(region) is None)

    def conversion_at(self, graph: DataflowGraph, position: int) -> Growth | None:
        """The elementwise region that begins with a conversion at a position, or None."""
        anchor = match_conversion(graph, position)
        if anchor is None:
            return None
        return grow(graph, anchor, lambda region: self.reject(region) is None)

    def reject(self, region: Region | None) -> str | None:
        """Why no template builds a region, or None."""
        if region is None:
            return "a shape is not known at compile time"
        if not has_template(region.op):
            return f"no template builds {region.op}"
        return template_for(region.op).rejection(region, self.isa)

    def leave(self, graph: DataflowGraph, position: int, reason: str) -> None:
        binding = graph.bindings[position]
        name = op_name(binding.value).removeprefix("relax.")
        self.decisions.append(
            Decision(node=str(binding.var.name), op=name, taken=False, reason=reason)
        )

    def call(self, graph: DataflowGraph, growth: Growth) -> list[relax.Binding]:
        """The bindings that replace a region: reshaped operands, and the call."""
        region = growth.region()
        bindings: list[relax.Binding] = []
        arguments: list[relax.Expr] = list(growth.anchor.inputs)
        for expr, tensor in growth.operands:
            actual = region_tensor(expr)
            if actual is not None and actual.shape != tensor.shape:
                shape = relax_shape(tensor.shape, expr, growth.result)
                reshaped = relax.op.reshape(expr, shape)
                view = relax.DataflowVar("view", relax.TensorType(shape, tensor.dtype))
                bindings.append(relax.VarBinding(view, reshaped))
                expr = view
            arguments.append(expr)
        function = _region_function(graph, growth, region, arguments)
        gvar = self.builder.add_func(function, f"fused_{region.op}")
        call = relax.Call(gvar, arguments, ret_ty=growth.result.ty)
        bindings.append(relax.VarBinding(growth.result, call))
        return bindings


def _region_function(
    graph: DataflowGraph, growth: Growth, region: Region, arguments: list[relax.Expr]
) -> relax.Function:
    """The region as a function of its arguments, in ordinary Relax."""
    parameters = [relax.Var(f"p{i}", argument.ty) for i, argument in enumerate(arguments)]
    inputs = len(growth.anchor.inputs)

    def emit(inner: relax.BlockBuilder) -> relax.Expr:
        values: dict[relax.Expr, relax.Expr] = {}
        for expr, parameter in zip(growth.anchor.inputs, parameters, strict=False):
            values.setdefault(expr, parameter)
        for (expr, _), parameter in zip(growth.operands, parameters[inputs:], strict=True):
            values.setdefault(expr, emit_as_used(inner, expr, parameter))
        inlined = sorted({*growth.epilogue.inlined} - {*growth.anchor.absorbed})
        for position in (*growth.anchor.absorbed, *inlined, *growth.members):
            value = substitute(graph.value(position), values)
            values[graph.bindings[position].var] = inner.emit(value)
        return values[growth.result]

    return region_function(region, parameters, emit)


def region_counts(mod: IRModule) -> list[tuple[Region, int]]:
    """The different regions of a partitioned module and how often it calls each, in order of their
    functions' names."""
    calls: dict[str, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, ir.GlobalVar):
            calls[expr.op.name_hint] = calls.get(expr.op.name_hint, 0) + 1

    found: dict[str, tuple[Region, list[str]]] = {}
    for gvar, function in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
        if is_region_function(function):
            region = region_of(function)
            found.setdefault(region.key, (region, []))[1].append(gvar.name_hint)
        elif isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return [(region, sum(calls.get(name, 0) for name in names)) for region, names in found.values()]

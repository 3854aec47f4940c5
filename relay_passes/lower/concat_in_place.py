"""Concat in place: kernels write their results directly into a concatenation's result.

Before

    lv = R.call_tir(tvm_hybrid_conv2d, (x, const_w), out_ty=R.Tensor((1, 56, 56, 64)))
    lv1 = R.call_tir(tvm_hybrid_conv2d1, (x, const_w1), out_ty=R.Tensor((1, 56, 56, 64)))
    lv2 = R.concat((lv, lv1), axis=-1)

After

    lv = R.call_tir(tvm_hybrid_conv2d_placed, (x, const_w), out_ty=R.Tensor((1, 56, 56, 128)))
    lv2 = R.call_tir_inplace(tvm_hybrid_conv2d1_placed, (x, const_w1, lv),
                             out_ty=R.Tensor((1, 56, 56, 128)), inplace_indices=[2])

Each kernel writes its own part only; nothing is copied, and TVM plans memory for one tensor. Axes
in front of that of the concatenation may be of open size. Nested concatenations, with reshapes
between them, are treated as one (such as the interleaved phases of a transposed convolution). A
part that no kernel computes, or that has another reader, is copied, if most of the result is not
copied; otherwise the concatenation stays. The pass works on finished kernels
(`tir_schedules.assembled.side_by_side`), so it works for every template.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from microkernels.machines.machine import Machine
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import KERNEL, REGION, region_of
from relay_passes.ir.graph import DataflowGraph, known_tensor, op_name, region_tensor, relax_shape
from relay_passes.ir.rewrite import rewrite_blocks
from relay_passes.ir.traits import RESHAPES
from tir_schedules.assembled.side_by_side import place_output
from tir_schedules.core.placement import Placement
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import quotient
from tir_schedules.core.template import template_for
from tir_schedules.rows.elementwise import X_DTYPES

from .lower_regions import build_kernel


def concat_in_place(machine: Machine, decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; it comes after `lower_regions`, while R.concat is still an operator.

    Parameters
    ----------
    machine : Machine
        Whom copies are built for.
    decisions : list of Decision
        Those of `lower_regions`; what is written in place says so in its reason.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.concat_in_place")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        placer = _Placer(mod, builder, machine, decisions)
        return rewrite_blocks(builder, placer.block)

    return run


@dataclass(frozen=True)
class _Part:
    """A part of a joint tensor.

    Attributes
    ----------
    source : relax.Expr
        The value that stands there.
    placement : Placement
        Where.
    words : str
        Where, for `explain`.
    position : int or None
        Of the call of the kernel that writes it; None if it is copied.
    kernel : PrimFunc or None
        That kernel, writing into the joint tensor.
    reason : str
        Why it is copied.
    """

    source: relax.Expr
    placement: Placement
    words: str
    position: int | None = None
    kernel: tirx.PrimFunc | None = None
    reason: str = ""


class _Placer:
    """Rewrites the blocks of one module."""

    def __init__(
        self, mod: IRModule, builder: relax.BlockBuilder, machine: Machine, decisions: DecisionLog
    ) -> None:
        self.mod, self.builder, self.machine = mod, builder, machine
        self.decisions = decisions
        self.placed: dict[object, tirx.PrimFunc | str] = {}
        self.functions: dict[object, relax.GlobalVar] = {}

    def block(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The block with its concatenations in place; None if there are none."""
        graph = DataflowGraph(block)
        inside: set[int] = set()
        found: dict[int, list[_Part]] = {}
        for position in reversed(range(len(graph.bindings))):
            if op_name(graph.value(position)) == "relax.concat" and position not in inside:
                passed: set[int] = set()
                parts = self.parts(graph, position, passed)
                if parts is not None:
                    found[position] = parts
                    inside |= passed
        if not found:
            return None
        replaced = {
            at: binding
            for position, parts in found.items()
            for at, binding in self.bindings(graph, position, parts)
        }
        bindings: list[relax.Binding] = []
        for position, binding in enumerate(graph.bindings):
            if position in replaced:
                bindings += replaced[position]
            elif position not in inside:
                bindings.append(binding)
        return bindings

    def parts(self, graph: DataflowGraph, position: int, passed: set[int]) -> list[_Part] | None:
        """What a concatenation consists of; None to leave it. `passed`: bindings not needed."""
        joint = region_tensor(graph.bindings[position].var)
        if joint is None or joint.dtype not in X_DTYPES or 0 in joint.shape:
            return None
        whole = Placement.whole(joint.size)
        parts = list(self.split(graph, position, joint, whole, passed))
        written = [part for part in parts if part.position is not None]
        most = 2 * sum(part.placement.size for part in written) >= joint.size
        complete = sum((part.placement.size for part in parts), start=0) == joint.size
        once = len({part.position for part in written}) == len(written)
        even = all(_rows(part.placement) is not None for part in parts if part.position is None)
        return parts if most and complete and once and even else None

    def split(
        self,
        graph: DataflowGraph,
        position: int,
        joint: Tensor,
        placement: Placement,
        passed: set[int],
    ) -> Iterator[_Part]:
        """The parts of the concatenation at a position, whose result is placed."""
        call, result = graph.value(position), region_tensor(graph.bindings[position].var)
        assert result is not None
        passed.add(position)
        axis = int(call.attrs.axis) % len(result.shape)
        row, first = math.prod(result.shape[axis:]), 0
        tensors = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else ()
        for expr in tensors:
            tensor = known_tensor(expr)
            size = math.prod(tensor.shape[axis:])
            own = placement.part(row, first, size)
            words = f"{first} of {row}"
            if row == result.shape[-1] == joint.shape[-1]:
                words = f"channel {words}"
            if own is not None:
                yield from self.part(graph, expr, joint, own, words, passed)
            first += size

    def part(
        self,
        graph: DataflowGraph,
        expr: relax.Expr,
        joint: Tensor,
        placement: Placement,
        words: str,
        passed: set[int],
    ) -> Iterator[_Part]:
        """A part, or the parts that it consists of."""
        source, at = expr, graph.position.get(expr) if isinstance(expr, relax.Var) else None
        through: set[int] = set()
        while at is not None:
            if not isinstance(source, relax.DataflowVar) or len(graph.users[source]) != 1:
                yield _Part(expr, placement, words, reason="it is needed besides")
                return
            value = graph.value(at)
            through.add(at)
            if op_name(value) == "relax.concat":
                passed |= through
                yield from self.split(graph, at, joint, placement, passed)
                return
            if op_name(value) not in RESHAPES:
                break
            source = value.args[0]
            at = graph.position.get(source) if isinstance(source, relax.Var) else None
        kernel: tirx.PrimFunc | str = "no kernel of a region makes it"
        if at is not None:
            kernel = self.kernel(graph.value(at), joint, placement)
        if isinstance(kernel, str):
            yield _Part(expr, placement, words, reason=kernel)
        else:
            passed |= through
            yield _Part(source, placement, words, at, kernel)

    def kernel(self, call: relax.Expr, joint: Tensor, placement: Placement) -> tirx.PrimFunc | str:
        """The kernel that a call calls, writing into a joint tensor; a str says why not."""
        if op_name(call) != "relax.call_tir":
            return "no kernel of a region makes it"
        function = self.mod[call.args[0]]
        if KERNEL not in (function.attrs or {}) or REGION not in function.attrs:
            return "no kernel of a region makes it"
        key = (call.args[0], joint.shape, placement)
        if key not in self.placed:
            region = region_of(function)
            if region.op == "elementwise":
                self.placed[key] = self.elementwise(region, joint, placement)
            else:
                self.placed[key] = place_output(
                    function, region.output.shape, joint.shape, placement
                )
        return self.placed[key]

    def elementwise(
        self, region: Region, joint: Tensor, placement: Placement
    ) -> tirx.PrimFunc | str:
        """The kernel of an elementwise region, in rows as they lie in a joint tensor."""
        apart = region.replace(attrs={**region.attrs, "row": _run(placement)})
        config = template_for(region.op).default_config(apart, self.machine)
        kernel = build_kernel(apart, config, self.machine)
        return place_output(kernel, apart.output.shape, joint.shape, placement)

    def bindings(
        self, graph: DataflowGraph, position: int, parts: list[_Part]
    ) -> Iterator[tuple[int, list[relax.Binding]]]:
        """The bindings that take the place of those at some positions."""
        result = graph.bindings[position].var
        joint = known_tensor(result)
        written = sorted(
            (p for p in parts if p.position is not None), key=lambda p: p.position or 0
        )
        copied = [part for part in parts if part.position is None]
        before: relax.Var | None = None
        at_end: list[relax.Binding] = []
        for number, part in enumerate((*written, *copied)):
            writer = result if part.position is None else graph.bindings[part.position].var
            last = number == len(parts) - 1
            var = result if last else relax.DataflowVar(f"{writer.name}joint", result.ty)
            if part.position is None:
                gvar = self.copy(joint, part, str(result.name))
                rows = _rows(part.placement)
                assert rows is not None
                shape = relax_shape((rows, _run(part.placement)), part.source)
                view = relax.DataflowVar("view", relax.TensorType(shape, joint.dtype))
                reshape = self.builder.normalize(relax.op.reshape(part.source, shape))
                at_end.append(relax.VarBinding(view, reshape))
                arguments = [view]
            else:
                call = graph.value(part.position)
                gvar = self.added(call.args[0], joint, part)
                arguments = list(call.args[1].fields)
                self.note(str(graph.bindings[part.position].var.name), call.args[0], gvar, part)
            if before is None:
                value = relax.call_tir(gvar, arguments, out_ty=result.ty)
            else:
                value = relax.op.call_tir_inplace(
                    gvar, [*arguments, before], [len(arguments)], result.ty
                )
            binding = relax.VarBinding(var, self.builder.normalize(value))
            before = var
            if part.position is None:
                at_end.append(binding)
            else:
                yield part.position, [binding]
        yield position, at_end

    def added(self, old: relax.GlobalVar, joint: Tensor, part: _Part) -> relax.GlobalVar:
        """The placed kernel in the module, under a name like the old one's."""
        key = (old, joint.shape, part.placement)
        if key not in self.functions:
            assert part.kernel is not None
            kernel = part.kernel.without_attr(REGION)
            name = f"{old.name_hint}_placed"
            self.functions[key] = self.builder.add_func(kernel, name)
        return self.functions[key]

    def copy(self, joint: Tensor, part: _Part, node: str) -> relax.GlobalVar:
        """A kernel that copies a part, with its decision."""
        run, rows = _run(part.placement), _rows(part.placement)
        assert rows is not None
        matrix = Tensor((rows, run), joint.dtype)
        region = Region(op="elementwise", inputs=(matrix,), output=matrix, attrs={"row": run})
        template = template_for(region.op)
        config = template.default_config(region, self.machine)
        kernel = build_kernel(region, config, self.machine)
        placed = place_output(kernel, matrix.shape, joint.shape, part.placement)
        assert isinstance(placed, tirx.PrimFunc), placed
        gvar = self.builder.add_func(placed.without_attr(REGION), "tvm_hybrid_concat_copy")
        self.decisions.append(
            Decision(
                node=node,
                op="concat",
                taken=True,
                function=str(gvar.name_hint),
                kernel=template.kernel_name(region, config, self.machine.isa),
                config=msgspec.to_builtins(config),
                source="default",
                reason=f"template elementwise: copied to {part.words}; {part.reason}",
            )
        )
        return gvar

    def note(self, node: str, old: relax.GlobalVar, gvar: relax.GlobalVar, part: _Part) -> None:
        """Says in a kernel's decision where it writes."""
        for index, decision in enumerate(self.decisions):
            if (decision.node, decision.function) == (node, str(old.name_hint)):
                reason = f"{decision.reason}; written at {part.words}"
                self.decisions[index] = msgspec.structs.replace(
                    decision, reason=reason, function=str(gvar.name_hint)
                )
                return


def _run(placement: Placement) -> int:
    """Elements that lie one behind the other."""
    return placement.extents[-1] if placement.strides[-1] == 1 else 1


def _rows(placement: Placement) -> int | None:
    """How many runs there are; None if distances differ, or if each has but one element."""
    run = _run(placement)
    rows = quotient(placement.size, run)
    if rows is None or run == 1 < placement.size:
        return None
    return None if placement.strides_of((rows, run)) is None else rows

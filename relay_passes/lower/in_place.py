"""Kernels that write results in place: caches of keys and values, and concatenations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from tvm import IRModule, relax, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from microkernels.machines.machine import Machine
from relay_passes.ir import functions
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import IN_PLACE, KERNEL, REGION, UNALIGNED, named_pass, region_of
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, region_tensor, relax_shape
from relay_passes.ir.rewrite import Bindings, is_relax, spliced, with_values
from relay_passes.ir.traits import RESHAPES
from tir_schedules.assembled.side_by_side import place_output
from tir_schedules.attention.caches import Growth, reject_growth
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.attention.dynamic import build_dynamic
from tir_schedules.core.placement import Placement
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import is_dynamic, quotient
from tir_schedules.core.template import template_for
from tir_schedules.rows.elementwise import X_DTYPES
from tir_schedules.rows.row_update import build_row_update

from .lower_regions import KernelPass, build_kernel, config_of, decision_of

_PAST_AND_PRESENT = [[1, 0], [3, 1]]  # (argument, result) of the keys and of the values
WHY = "it writes k and v as well"


@named_pass
def grow_caches(mod: IRModule, machine: Machine, decisions: DecisionLog) -> IRModule:
    """Grow caches: fuses the append to a KV cache into the attention that reads the cache.

    Before

        k = R.concat((past_k, new_k), axis=2)
        v = R.concat((past_v, new_v), axis=2)
        lv = fused_attention(q, k, v, mask)

    After

        grown = R.call_tir(tvm_hybrid_attention_growing, (q, past_k, new_k, past_v, new_v, mask),
                           out_ty=[R.Tensor(...), R.Tensor(...), R.Tensor(...)])
        k = grown[0]; v = grown[1]; lv = grown[2]

    A decoder step then reads the past once, and not a second time if it lies outside the caches
    (`attention/caches.py`). Only for dynamic sizes, and caches of float32.

    It must run before `lower_regions`, and notes what it builds.
    """
    return _Grower(mod, machine, decisions).rewritten()


class _Grower(KernelPass):
    """Rewrites the blocks of one module."""

    def block(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The block with attentions that write k and v; None if there are none."""
        graph = DataflowGraph(block)
        grown: dict[int, list[relax.Binding]] = {}
        inside: set[int] = set()  # positions of the concatenations that attentions take over
        for position in range(len(graph.bindings)):
            callee = functions.called_region(self.mod, graph.value(position))
            if callee is not None and region_of(callee).op == "attention":
                bindings = self.grown(graph, position, callee, inside)
                if bindings:
                    grown[position] = bindings
        return spliced(graph, grown, inside) if grown else None

    def grown(
        self, graph: DataflowGraph, position: int, callee: relax.Function, inside: set[int]
    ) -> list[relax.Binding]:
        """The call of an attention that also writes k and v, its results under their old names.

        Empty if k and v cannot be its results; else `inside` receives the positions of their
        concatenations.
        """
        binding, region, isa = graph.bindings[position], region_of(callee), self.machine.isa
        q, k, v, *operands = binding.value.args
        joined = [_joined(graph, each, position) for each in (k, v)]
        if joined[0] is None or joined[1] is None or joined[0][0] == joined[1][0]:
            return []
        places, pairs, found = zip(*joined, strict=True)
        growths = dict(zip("kv", found, strict=True))
        if inside & {*places} or reject_growth(region, growths, isa) is not None:
            return []
        inside.update(places)
        config = config_of(callee)
        assert isinstance(config, AttentionConfig)
        key = (region.key, config, found)
        if key not in self.kernels:
            function = build_dynamic(region, config, isa, growths)
            name = template_for(region.op).kernel_name(region, config, isa)
            kernel = _marked(function, name, _PAST_AND_PRESENT)
            self.kernels[key] = self.builder.add_func(kernel, "tvm_hybrid_attention_growing")
        variables = [*(graph.bindings[place].var for place in places), binding.var]
        arguments = [q, *(tensor for pair in pairs for tensor in pair), *operands]
        types = [variable.ty for variable in variables]
        call = relax.call_tir(self.kernels[key], arguments, out_ty=types)
        self.decisions.append(decision_of(binding, callee, self.kernels[key], self.machine))
        self.note(binding.var, self.kernels[key], WHY)
        return self.results(call, "grown", variables)


def _marked(function: tirx.PrimFunc, kernel: str, in_place: list[list[int]]) -> tirx.PrimFunc:
    """A kernel for the module that may write some results over arguments."""
    attrs = {KERNEL: kernel, UNALIGNED: True, OP_PATTERN: OPAQUE}
    marked = function.without_attr("global_symbol").with_attrs(attrs)
    return marked.with_attr(IN_PLACE, in_place) if in_place else marked


def _joined(
    graph: DataflowGraph, expr: relax.Expr, position: int
) -> tuple[int, tuple[relax.Expr, relax.Expr], Growth] | None:
    """(position, (past, new), their tensors) of a concatenation of rows; None for others."""
    call = graph.definition(expr)
    if not is_call(call, "relax.concat") or not isinstance(call.args[0], relax.Tuple):
        return None
    fields = tuple(call.args[0].fields)
    rank = len(expr.ty.shape.values)
    if len(fields) != 2 or int(call.attrs.axis) % rank != rank - 2:
        return None
    if min(graph.users[expr]) < position:  # it is needed before
        return None
    past, new = map(region_tensor, fields)
    if past is None or new is None:
        return None
    return graph.position[expr], fields, Growth(past, new)


ROW_UPDATE = "tvm_hybrid.row_update"
_NAME = "row_update"


@named_pass
def update_rows(mod: IRModule, threads: int, decisions: DecisionLog) -> IRModule:
    """Update rows: caches of static size get a kernel that writes new rows in place if it may.

    Before

        cache = R.call_tir(update_cache, (new, before, past), out_ty=...)    # attribute ROW_UPDATE

    After

        cache = R.call_tir(tvm_hybrid_row_update, (past, new, before), out_ty=...)

    The attribute holds the numbers of three arguments: the new rows, the number of rows before them
    and, if there is one, the past.

    It must run while the functions of operators are as their converters wrote them.
    """
    marked = {
        gvar
        for gvar, function in mod.functions_items()
        if ROW_UPDATE in (getattr(function, "attrs", None) or {})
    }
    if not marked:
        return mod
    builder = relax.BlockBuilder(mod)
    kernels: dict[tuple[Tensor | None, ...], relax.GlobalVar] = {}

    def updated(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if not isinstance(call, relax.Call) or not call.args or call.args[0] not in marked:
            return None
        places = list(map(int, mod[call.args[0]].attrs[ROW_UPDATE]))
        new, before, *past = (call.args[1].fields[place] for place in places)
        rows, first, made, *old = map(region_tensor, (new, before, binding.var, *past))
        # The kernel needs rows of a static width.
        if rows is None or first is None or made is None or None in old:
            return None
        if is_dynamic(made.shape[-1:]):
            return None
        key = (rows, first, made, *old)
        if key not in kernels:
            function = build_row_update(old[0] if old else None, rows, first, made, threads)
            kernel = _marked(function, _NAME, [[0, 0]] if old else [])
            kernels[key] = builder.add_func(kernel, f"tvm_hybrid_{_NAME}")
        decisions.append(
            Decision(
                node=str(binding.var.name),
                op=str(call.args[0].name_hint),
                taken=True,
                function=str(kernels[key].name_hint),
                kernel=_NAME,
                reason="writes only new rows if its output is bound to its past",
            )
        )
        return builder.normalize(
            relax.op.call_tir(kernels[key], [*past, new, before], out_ty=[binding.var.ty])
        )

    for gvar, function in list(mod.functions_items()):
        if is_relax(function):
            builder.update_func(gvar, with_values(function, updated))
    return relax.transform.DeadCodeElimination()(builder.get())


# Concat in place: kernels write their results directly into a concatenation's result.
#
# Before
#
#     lv = R.call_tir(tvm_hybrid_conv2d, (x, const_w), out_ty=R.Tensor((1, 56, 56, 64)))
#     lv1 = R.call_tir(tvm_hybrid_conv2d1, (x, const_w1), out_ty=R.Tensor((1, 56, 56, 64)))
#     lv2 = R.concat((lv, lv1), axis=-1)
#
# After
#
#     lv = R.call_tir(tvm_hybrid_conv2d_placed, (x, const_w), out_ty=R.Tensor((1, 56, 56, 128)))
#     lv2 = R.call_tir_inplace(tvm_hybrid_conv2d1_placed, (x, const_w1, lv),
#                              out_ty=R.Tensor((1, 56, 56, 128)), inplace_indices=[2])
#
# Each kernel writes only its part; nothing is copied, and TVM plans memory for one tensor. Axes
# before the concatenation's axis may be dynamic. Nested concatenations, with reshapes between them,
# are treated as one (such as the interleaved phases of a transposed convolution). A part that no
# kernel computes, or that has another reader, is copied, provided that most of the result is not
# copied; otherwise the concatenation stays. The pass works on finished kernels
# (`tir_schedules.assembled.side_by_side`), so it works for every template.


@named_pass
def concat_in_place(mod: IRModule, machine: Machine, decisions: DecisionLog) -> IRModule:
    """The pass; it must run after `lower_regions`, while R.concat is still an operator.

    Parameters
    ----------
    machine : Machine
        The machine that copy kernels are built for.
    decisions : list of Decision
        The decisions of `lower_regions`; writing in place is added to a kernel's reason.
    """
    return _Placer(mod, machine, decisions).rewritten()


@dataclass(frozen=True)
class _Part:
    """A part of a joint tensor.

    Attributes
    ----------
    source : relax.Expr
        The value of the part.
    placement : Placement
        Its place in the joint tensor.
    words : str
        Its place in words, for `explain`.
    position : int or None
        Position of the call of the kernel that writes it; None if it is copied.
    kernel : PrimFunc or None
        The kernel, changed to write into the joint tensor.
    reason : str
        Why it is copied.
    """

    source: relax.Expr
    placement: Placement
    words: str
    position: int | None = None
    kernel: tirx.PrimFunc | None = None
    reason: str = ""


@dataclass
class _Joint:
    """A tensor that a concatenation makes.

    Attributes
    ----------
    graph : DataflowGraph
        The block.
    tensor : Tensor
        Shape and type of the tensor.
    passed : set of int
        Positions of the bindings that become unused once the parts are written in place.
    """

    graph: DataflowGraph
    tensor: Tensor
    passed: set[int] = field(default_factory=set)


class _Placer(KernelPass):
    """Rewrites the blocks of one module."""

    def __init__(self, mod: IRModule, machine: Machine, decisions: DecisionLog) -> None:
        super().__init__(mod, machine, decisions)
        self.placed: dict[object, tirx.PrimFunc | str] = {}

    def block(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The block with its concatenations in place; None if there are none."""
        graph = DataflowGraph(block)
        inside: set[int] = set()
        found: dict[int, list[_Part]] = {}
        for position in reversed(range(len(graph.bindings))):
            if not is_call(graph.value(position), "relax.concat") or position in inside:
                continue
            tensor = region_tensor(graph.bindings[position].var)
            if tensor is None or tensor.dtype not in X_DTYPES or 0 in tensor.shape:
                continue
            joint = _Joint(graph, tensor)
            parts = self.parts(joint, position)
            if parts is not None:
                found[position] = parts
                inside |= joint.passed
        if not found:
            return None
        replaced = {
            at: bindings
            for position, parts in found.items()
            for at, bindings in self.bindings(graph, position, parts)
        }
        return spliced(graph, replaced, inside)

    def parts(self, joint: _Joint, position: int) -> list[_Part] | None:
        """The parts of a concatenation; None to leave it."""
        size = joint.tensor.size
        parts = list(self.split(joint, position, Placement.whole(size)))
        written = [part for part in parts if part.position is not None]
        most = 2 * sum(part.placement.size for part in written) >= size
        complete = sum((part.placement.size for part in parts), start=0) == size
        once = len({part.position for part in written}) == len(written)
        even = all(_rows(part.placement) is not None for part in parts if part.position is None)
        return parts if most and complete and once and even else None

    def split(self, joint: _Joint, position: int, placement: Placement) -> Iterator[_Part]:
        """The parts of the concatenation at a position, with its result at `placement`."""
        graph = joint.graph
        call, result = graph.value(position), region_tensor(graph.bindings[position].var)
        assert result is not None
        joint.passed.add(position)
        axis = int(call.attrs.axis) % len(result.shape)
        row, first = math.prod(result.shape[axis:]), 0
        tensors = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else ()
        for expr in tensors:
            tensor = known_tensor(expr)
            size = math.prod(tensor.shape[axis:])
            own = placement.part(row, first, size)
            words = f"{first} of {row}"
            if row == result.shape[-1] == joint.tensor.shape[-1]:
                words = f"channel {words}"
            if own is not None:
                yield from self.part(joint, expr, own, words)
            first += size

    def part(
        self, joint: _Joint, expr: relax.Expr, placement: Placement, words: str
    ) -> Iterator[_Part]:
        """A part, or the parts that it consists of."""
        graph = joint.graph
        source, at = expr, graph.position.get(expr)
        through: set[int] = set()
        while at is not None:
            if graph.only_user(source) is None:
                yield _Part(expr, placement, words, reason="it has other readers")
                return
            value = graph.value(at)
            through.add(at)
            if is_call(value, "relax.concat"):
                joint.passed |= through
                yield from self.split(joint, at, placement)
                return
            if not is_call(value, *RESHAPES):
                break
            source = value.args[0]
            at = graph.position.get(source)
        kernel = self.kernel(graph.definition(source), joint.tensor, placement)
        if isinstance(kernel, str):
            yield _Part(expr, placement, words, reason=kernel)
        else:
            joint.passed |= through
            yield _Part(source, placement, words, at, kernel)

    def kernel(
        self, call: relax.Expr | None, joint: Tensor, placement: Placement
    ) -> tirx.PrimFunc | str:
        """A call's kernel, changed to write into a joint tensor; a str says why it cannot."""
        if not is_call(call, "relax.call_tir"):
            return "no region's kernel computes it"
        function = self.mod[call.args[0]]
        if KERNEL not in (function.attrs or {}) or REGION not in function.attrs:
            return "no region's kernel computes it"
        key = (call.args[0], joint.shape, placement)
        if key not in self.placed:
            region = region_of(function)
            if region.op == "elementwise":  # rebuilt for the rows of the joint tensor
                region = region.replace(attrs={**region.attrs, "row": _run(placement)})
                config = template_for(region.op).default_config(region, self.machine)
                function = build_kernel(region, config, self.machine)
            own = region.output.shape
            self.placed[key] = place_output(function, own, joint.shape, placement)
        return self.placed[key]

    def bindings(
        self, graph: DataflowGraph, position: int, parts: list[_Part]
    ) -> Iterator[tuple[int, list[relax.Binding]]]:
        """The new bindings for some positions of the block."""
        result = graph.bindings[position].var
        joint = known_tensor(result)
        last_ones = len(graph.bindings)  # copies come last
        ordered = sorted(parts, key=lambda p: last_ones if p.position is None else p.position)
        before: relax.Var | None = None
        at_end = Bindings()
        for part in ordered:
            writer = result if part.position is None else graph.bindings[part.position].var
            last = part is ordered[-1]
            var = result if last else relax.DataflowVar(f"{writer.name}joint", result.ty)
            if part.position is None:
                gvar = self.copy(joint, part, str(result.name))
                rows = _rows(part.placement)
                assert rows is not None
                shape = relax_shape((rows, _run(part.placement)), part.source)
                arguments = [at_end.emit(relax.op.reshape(part.source, shape), "view")]
            else:
                call = graph.value(part.position)
                old = call.args[0]
                key = (old, joint.shape, part.placement)
                if key not in self.kernels:
                    assert part.kernel is not None
                    kernel = part.kernel.without_attr(REGION)
                    self.kernels[key] = self.add(kernel, f"{old.name_hint}_placed")
                gvar = self.kernels[key]
                arguments = list(call.args[1].fields)
                self.note(writer, old, f"written at {part.words}", function=str(gvar.name_hint))
            if before is None:
                value = relax.call_tir(gvar, arguments, out_ty=result.ty)
            else:
                value = relax.op.call_tir_inplace(
                    gvar, [*arguments, before], [len(arguments)], result.ty
                )
            before = var
            if part.position is None:
                at_end.bind(var, value)
            else:
                yield part.position, [relax.VarBinding(var, self.builder.normalize(value))]
        yield position, at_end.bindings

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
        key, bare = (matrix, joint.shape, part.placement), placed.without_attr(REGION)
        if key not in self.kernels:
            self.kernels[key] = self.add(bare, "tvm_hybrid_concat_copy")
        gvar = self.kernels[key]
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


def _run(placement: Placement) -> int:
    """Contiguous elements in a placement."""
    return placement.extents[-1] if placement.strides[-1] == 1 else 1


def _rows(placement: Placement) -> int | None:
    """Number of runs; None if their distances differ, or if a run has only one element."""
    run = _run(placement)
    rows = quotient(placement.size, run)
    if rows is None or run == 1 < placement.size:
        return None
    return None if placement.strides_of((rows, run)) is None else rows

"""Caches of keys and values: grown or written in place by the kernels that read them."""

from __future__ import annotations

from tvm import IRModule, relax, tirx

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from microkernels.machines.machine import Machine
from tir_schedules.attention.caches import Growth, reject_growth
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.attention.dynamic import build_open
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import is_open
from tir_schedules.core.template import template_for
from tir_schedules.rows.row_update import build_row_update

from ..ir.decisions import Decision, DecisionLog
from ..ir.functions import IN_PLACE, KERNEL, UNALIGNED, called_region, named_pass, region_of
from ..ir.graph import DataflowGraph, is_call, region_tensor
from ..ir.rewrite import is_relax, spliced, with_values
from .lower_regions import KernelPass, config_of, decision_of

_PAST_AND_PRESENT = [[1, 0], [3, 1]]  # of the keys, of the values
WHY = "it writes k and v as well"


@named_pass
def grow_caches(mod: IRModule, machine: Machine, decisions: DecisionLog) -> IRModule:
    """Grow caches: attention writes the keys and values that it reads, where these are its to make.

    Before

        k = R.concat((past_k, new_k), axis=2)
        v = R.concat((past_v, new_v), axis=2)
        lv = fused_attention(q, k, v, mask)

    After

        grown = R.call_tir(tvm_hybrid_attention_growing, (q, past_k, new_k, past_v, new_v, mask),
                           out_ty=[R.Tensor(...), R.Tensor(...), R.Tensor(...)])
        k = grown[0]; v = grown[1]; lv = grown[2]

    A step of a decoder reads the past once then, and not a second time where that lies outside of
    the caches (`attention/caches.py`). For dynamic sizes, and caches of float32.

    The pass; it comes before `lower_regions`, and notes what it builds.
    """
    return _Grower(mod, machine, decisions).rewritten()


class _Grower(KernelPass):
    """Rewrites the blocks of one module."""

    def block(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The block with attentions that write k and v; None if there are none."""
        graph = DataflowGraph(block)
        grown: dict[int, list[relax.Binding]] = {}
        inside: set[int] = set()  # positions of the concatenations that they do
        for position in range(len(graph.bindings)):
            callee = called_region(self.mod, graph.value(position))
            if callee is not None and region_of(callee).op == "attention":
                bindings = self.grown(graph, position, callee, inside)
                if bindings:
                    grown[position] = bindings
        return spliced(graph, grown, inside) if grown else None

    def grown(
        self, graph: DataflowGraph, position: int, callee: relax.Function, inside: set[int]
    ) -> list[relax.Binding]:
        """The call of an attention, and its results under the names they had.

        Nothing if k and v cannot be its results; else `inside` receives where they were joined.
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
            function = build_open(region, config, isa, growths)
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
    """A kernel for the module, which may write some results over arguments."""
    attrs = {KERNEL: kernel, UNALIGNED: True, OP_PATTERN: OPAQUE}
    marked = function.without_attr("global_symbol").with_attrs(attrs)
    return marked.with_attr(IN_PLACE, in_place) if in_place else marked


def _joined(
    graph: DataflowGraph, expr: relax.Expr, position: int
) -> tuple[int, tuple[relax.Expr, relax.Expr], Growth] | None:
    """(place, (past, new), their tensors) of rows joined for what stands at a position."""
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
    """Update rows: caches of fixed size get a kernel that writes new rows in place where it may.

    Before

        cache = R.call_tir(update_cache, (new, before, past), out_ty=...)    # attribute ROW_UPDATE

    After

        cache = R.call_tir(tvm_hybrid_row_update, (past, new, before), out_ty=...)

    The attribute says which arguments the new rows, the rows before them and, if there is one, the
    past are.

    The pass; it comes while operators' own functions are as their converters wrote them.
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
        if rows is None or first is None or made is None or None in old:
            return None
        if is_open(made.shape[-1:]):
            return None  # the kernel takes rows of a known width
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
                reason="new rows only, where it is bound to its past",
            )
        )
        return builder.normalize(
            relax.op.call_tir(kernels[key], [*past, new, before], out_ty=[binding.var.ty])
        )

    for gvar, function in list(mod.functions_items()):
        if is_relax(function):
            builder.update_func(gvar, with_values(function, updated))
    return relax.transform.DeadCodeElimination()(builder.get())

"""Lifts programs: calls of TIR functions and einsums become the operators that they compute.

Before

    lv = R.call_tir(fused_matmul_add, (x, const_w, b), out_ty=R.Tensor((8, 64), "float32"))
    gv = R.einsum((lv, y), "ij,kj->ki")

After

    lv1 = R.matmul(x, const_w)
    lv = R.add(lv1, b)
    lv2 = R.permute_dims(lv, [1, 0])
    gv = R.matmul(y, lv2)

This is automatic tensorization (Feng et al., arXiv 2207.04296, section 4.2) one level higher: the
roles of a block's axes show what is multiplied, and the templates get it as an operator, so that
fusion, packing, layouts, dynamic sizes and tuning records work as for any other product.

A function without a sum of products is lifted only if another function of the module has one: it
may be fused with that. Scheduled functions stay, and so does every function that cannot be proved
to be operators. Decisions say how each sum of products was lifted, or why not.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import IRModule, relax, tirx

from microkernels.base.tvm_compat.relax import FUSED
from relay_passes.ir.decisions import TENSORIZE, Decision, DecisionLog
from relay_passes.ir.functions import named_pass
from relay_passes.ir.graph import bindings_of, is_call, region_tensor, size_of
from relay_passes.ir.rewrite import is_kernel, is_relax, rewrite_blocks
from relay_passes.ir.tidy import tidy
from tir_schedules.core.size import is_dynamic
from tir_schedules.generic.nest import NotHandledError, read_program
from tir_schedules.tensorize.arrangement import ChooseArrangement, Labels, RefusedError

from .emission import Emission, Extents
from .lift_function import is_product, lift_function
from .tir_contraction import Operand, in_caller_sizes, multiply_in_turns

logger = logging.getLogger("tvm_hybrid")

_SCHEDULED = ("tirx.is_scheduled", "tvm_hybrid.kernel", "tvm_hybrid.region")


@named_pass
def lift_programs(
    mod: IRModule,
    lanes: int = 16,
    decisions: DecisionLog | None = None,
    arrange: ChooseArrangement | None = None,
) -> IRModule:
    """The pass; it needs A-normal form.

    Parameters
    ----------
    lanes : int
        Lanes of a float32 vector on the target, for estimates.
    decisions : list of Decision, optional
        Receives the decision for every sum of products.
    arrange : callable, optional
        Returns recorded arrangements of contractions.
    """
    log = [] if decisions is None else decisions
    bindings = (each for f in mod.functions.values() if is_relax(f) for each in bindings_of(f))
    if not any(is_call(each.value, "relax.einsum", "relax.call_tir") for each in bindings):
        return mod
    lifter = _Lifter(_without_fused(mod), partial(Emission, lanes, arrange), log)
    lifted = rewrite_blocks(lifter.builder, lifter.rewrite)
    return tidy()(lifted) if lifter.changed else mod


def _without_fused(mod: IRModule) -> IRModule:
    """Inlines functions that FuseOps made, if the module has a product."""
    fused = {
        gvar: function
        for gvar, function in mod.functions_items()
        if is_relax(function) and FUSED in (function.attrs or ())
    }
    if not fused or not any(_has_product(f) for f in mod.functions.values() if is_kernel(f)):
        return mod
    kept = {gvar: each for gvar, each in mod.functions_items() if gvar not in fused}
    updated = IRModule(kept, mod.attrs, mod.global_infos)
    for gvar, function in kept.items():
        if is_relax(function):
            updated.update_func(gvar, function.inline_functions(fused))
    return relax.transform.CanonicalizeBindings()(updated)


class _Lifter:
    """Rewrites the blocks of one module."""

    def __init__(
        self, mod: IRModule, new_block: Callable[[], Emission], decisions: DecisionLog
    ) -> None:
        self.builder = relax.BlockBuilder(mod)
        self.changed = False
        self._mod, self._new_block = mod, new_block
        self._decisions = decisions
        # What was emitted for the variables of the block.
        self._values: dict[relax.Expr, relax.Expr] = {}
        self._with_product = {
            gvar: _has_product(function)
            for gvar, function in mod.functions_items()
            if is_kernel(function) and not any(x in (function.attrs or {}) for x in _SCHEDULED)
        }

    def rewrite(self, block: relax.DataflowBlock) -> list[relax.Binding] | None:
        """The bindings of a block, some replaced by operators; None if none is."""
        written = self._new_block()
        self._values = {}
        changed = False
        for binding in block.bindings[:]:
            lifted = isinstance(binding, relax.VarBinding) and self._lift(written, binding)
            if not lifted:
                written.bindings.append(binding)
            changed |= lifted
        self.changed |= changed
        return written.bindings if changed else None

    def _lift(self, block: Emission, binding: relax.VarBinding) -> bool:
        """Emits a binding as operators; returns whether it could."""
        call = binding.value
        kept = block.mark
        try:
            if is_call(call, "relax.einsum"):
                value, how = emit_einsum(block, call)
                block.bind(binding.var, value)
                self._note(binding.var, "einsum", how, taken=True)
                return True
            if is_call(call, "relax.call_tir"):
                return self._lift_call(block, binding.var, call)
        except RefusedError as reason:
            block.undo(kept)
            if is_call(call, "relax.einsum") or self._with_product[call.args[0]]:
                name = getattr(call.args[0], "name_hint", "einsum")
                self._note(binding.var, str(name), str(reason), taken=False)
        # An error of TVM's operators must not fail the compilation: the function works as it is.
        except Exception:
            block.undo(kept)
            logger.warning("%s could not be lifted", binding.var.name, exc_info=True)
        return False

    def _lift_call(self, block: Emission, var: relax.Var, call: relax.Call) -> bool:
        gvar = call.args[0]
        if not any(self._with_product.values()) or gvar not in self._with_product:
            return False
        if len(call.args) != 2 or not isinstance(call.args[1], relax.Tuple):
            return False
        args = [self._values.get(arg, arg) for arg in call.args[1].fields]
        outputs = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        function, tensors = in_caller_sizes(self._mod[gvar], args, outputs)
        add = self.builder.add_func
        values, products, left = lift_function(block, function, tensors, add)
        if len(values) > 1:
            block.bind(var, relax.Tuple(values))
        else:
            block.bind(var, values[0])
            self._values[var] = values[0]
        if products:
            reason = "; ".join([*products, *(f"separate function: {each}" for each in left)])
            self._note(var, str(gvar.name_hint), reason, taken=True)
        return True

    def _note(self, var: relax.Var, function: str, reason: str, taken: bool) -> None:
        node, op = str(var.name), TENSORIZE
        decision = Decision(node=node, op=op, taken=taken, function=function, reason=reason)
        self._decisions.append(decision)


def _has_product(function: tirx.PrimFunc) -> bool:
    try:
        return any(map(is_product, read_program(function, size_of).nests))
    except NotHandledError:
        return False


_MOST = 6  # operands
_ELLIPSIS = "..."


def emit_einsum(block: Emission, call: relax.Call) -> tuple[relax.Expr, str]:
    """Einsum: sums of products by labels become matmuls.

    Before

        gv = R.einsum((q, k), "bqhd,bkhd->bhqk")

    After

        lv = R.permute_dims(q, [0, 2, 1, 3])
        lv1 = R.permute_dims(k, [0, 2, 3, 1])
        gv = R.matmul(lv, lv1)

    Three or more operands are multiplied two at a time; `tir_contraction` chooses the order. An
    ellipsis stands for as many labels as it has axes. An einsum with one label twice in an operand
    stays, and so does one of a single operand.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    call : relax.Call
        The call of R.einsum.

    Returns
    -------
    value : relax.Expr
        The result; its last operator may not be bound yet.
    how : str
        Which candidates were chosen.

    Raises
    ------
    RefusedError
        If it is no sum of products of matrices; the message says why.
    """
    values = list(call.args[0])
    inputs, out = _labels(str(call.attrs.subscripts), [int(value.ty.ndim) for value in values])
    operands = [Operand(value, labels) for value, labels in zip(values, inputs, strict=True)]
    dtypes = {str(value.ty.dtype) for value in values}
    if dtypes not in ({"float32"}, {"float16"}, {"bfloat16"}):
        raise RefusedError(f"{' by '.join(sorted(dtypes))}: no kernel multiplies that")
    return multiply_in_turns(block, operands, out, _extents(operands), str(call.ty.dtype))


def _labels(subscripts: str, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand, and the labels of the result."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    parts = given.split(",")
    if len(parts) != len(ranks) or not 2 <= len(ranks) <= _MOST:
        raise RefusedError(f"{len(ranks)} operands, but 2 to {_MOST} are supported")
    inputs = [_spelled(part, rank) for part, rank in zip(parts, ranks, strict=True)]
    for labels in inputs:
        if len(set(labels)) < len(labels):
            raise RefusedError("a label twice in an operand: a diagonal")
    letters = list(itertools.chain(*inputs))
    # Labels of an ellipsis are counted from the last axis, as broadcasting aligns axes.
    further = sorted({label for label in letters if label.startswith(_ELLIPSIS)}, reverse=True)
    if arrow:
        before, dots, after = result.partition(_ELLIPSIS)
        return inputs, (*before, *(further if dots else ()), *after)
    once = sorted(x for x in letters if letters.count(x) == 1 and x not in further)
    return inputs, (*further, *once)


def _spelled(part: str, rank: int) -> Labels:
    """The labels of an operand; an ellipsis gives one per axis, counted from its end."""
    before, dots, after = part.partition(_ELLIPSIS)
    count = rank - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise RefusedError(f"{part}: the labels do not match the number of axes")
    return (*before, *(f"{_ELLIPSIS}{place}" for place in reversed(range(count))), *after)


def _extents(operands: list[Operand]) -> Extents:
    """The extent of every label, in the form in which shapes have it."""
    sizes: dict[str, int] = {}
    extents: dict[str, Any] = {}
    for operand in operands:
        tensor = region_tensor(operand.value)
        if tensor is None:
            raise RefusedError("a shape is not known at compile time")
        shape = operand.value.ty.shape.values
        for label, size, extent in zip(operand.labels, tensor.shape, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise RefusedError(f"the label {label} has the extents {sizes[label]} and {size}")
            if not is_dynamic([size]) and size == 0:
                raise RefusedError("an extent of 0")
            extents.setdefault(label, extent)
    return extents

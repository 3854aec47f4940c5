"""Projections: merges products of one tensor with several weights of an attention into one product.

Before

    q = R.add(R.matmul(x, const_wq), const_bq)
    k = R.add(R.matmul(x, const_wk), const_bk)
    v = R.add(R.matmul(x, const_wv), const_bv)

After

    qkv = R.add(R.matmul(x, const_w), const_b)          # weights and biases side by side
    q = R.strided_slice(qkv, axes=[-1], begin=[0], end=[N])
    ...k and v alike...

Elementwise operators that follow every product are merged too, with their constants side by side.
One kernel instead of three saves calls and, with several threads, forks. If a tensor is quantised
dynamically or rounded to 16 bits only for these products, the merged kernel converts it; no other
kernel has to write the converted tensor.

Only queries, keys and values of an attention are merged, because the merged attention reads slices
in place. Elementwise operators in between, such as a rotary embedding, become slower if they read
slices: an estimate decides. Products that are quantised with different constant scales are not
merged: scales per column need a division, a constant scale a multiplication.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, relax

from microkernels.base.arrays import aligned_empty
from microkernels.machines.machine import Machine
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.functions import named_pass, with_args
from relay_passes.ir.graph import DataflowGraph, is_call, known_tensor, op_name, region_tensor
from relay_passes.ir.moving_operators import keeps_order
from relay_passes.ir.rewrite import Bindings, move_functions, take_blocks, take_callers
from relay_passes.ir.tidy import tidied
from relay_passes.ir.traits import QUANTIZING, VIEWS

MERGE = "merge projections"
MOVING = (*VIEWS, "relax.split", "relax.concat")
# Operators allowed between a projection and the attention's product.
BETWEEN = (
    *(*MOVING, *QUANTIZING, "relax.astype", "relax.where"),
    *("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.negative"),
)
# Operators that are merged if they follow every product.
JOINED = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.astype")
# Cycles for one element, measured on one thread (Zen 4): added time of a rotary embedding that
# reads a slice, and of a separate kernel that quantises or rounds.
SLICE_CYCLES = 1.07
CONVERSION_CYCLES = 0.333


@named_pass
def merge_projections(
    mod: IRModule, machine: Machine, decisions: DecisionLog | None = None
) -> IRModule:
    """The pass; it needs A-normal form after common subexpressions were eliminated.

    It moves all functions out of its module, so that each weight is freed once it has been merged.

    Parameters
    ----------
    machine : Machine
        The machine that kernels are built for.
    decisions : list of Decision, optional
        Receives the merges, and why other products of one tensor are not merged.
    """
    log = [] if decisions is None else decisions
    written, changes = move_functions(mod), 0

    def merged(graph: DataflowGraph) -> list[relax.Binding] | None:
        nonlocal changes
        new = _Merger(graph, machine, log).run()
        changes += new is not None
        return new

    callers = take_callers(written)
    for gvar in list(callers):
        written.update_func(gvar, take_blocks(callers, gvar, merged))
    return tidied(written) if changes else written


class _Merger:
    """Merges the projections of one block."""

    def __init__(self, graph: DataflowGraph, machine: Machine, decisions: DecisionLog) -> None:
        self.graph, self.machine, self.decisions = graph, machine, decisions
        self.inserted: dict[int, list[relax.Binding]] = {}
        self.replaced: dict[int, relax.Expr] = {}
        self.merged: set[int] = set()

    def run(self) -> list[relax.Binding] | None:
        """The block's new bindings; None if nothing is merged."""
        for group in self.groups():
            projections = [p for p in group if self.products(p) is not None]
            if len(projections) > 1:
                result = self.merge(projections)
            else:
                projections, result = group, "are not merged: not only an attention reads them"
            name = str(self.graph.bindings[projections[0]].var.name)
            reason = f"{len(projections)} products of one tensor {result}"
            self.decisions.append(Decision(node=name, op=MERGE, taken=True, reason=reason))
        if not self.replaced:
            return None
        out = Bindings()
        for position, binding in enumerate(self.graph.bindings):
            out.bindings += self.inserted.get(position, [])
            if position in self.replaced:
                out.bind(binding.var, self.replaced[position])
            else:
                out.bindings.append(binding)
        return out.bindings

    def groups(self) -> list[list[int]]:
        """Positions of products of one tensor with two or more constant matrices."""
        found: dict[tuple[relax.Expr, str, str], list[int]] = {}
        for position in range(len(self.graph.bindings)):
            call = self.graph.value(position)
            if not is_call(call, "relax.matmul") or region_tensor(call) is None:
                continue
            weight = self.weight(call.args[1])
            if weight is None or not isinstance(call.args[0], relax.Var):
                continue
            key = (call.args[0], str(call.ty.dtype), weight)
            found.setdefault(key, []).append(position)
        return [group for group in found.values() if len(group) > 1]

    def weight(self, expr: relax.Expr) -> str | None:
        """Type of the constant matrix that a product's second factor comes from, else None."""
        tensor = region_tensor(expr)
        if tensor is None or len(tensor.shape) != 2:
            return None
        while not isinstance(expr, ir.GenericConst):
            call = self.graph.definition(expr)
            if not is_call(call, "relax.astype", "relax.subtract"):
                return None
            expr = call.args[0]
        return str(expr.ty.dtype)

    def merge(self, group: Sequence[int]) -> str:
        """Merges a group if that pays; returns the outcome in words."""
        products = {at for position in group for at in self.products(position) or ()}
        if not any(map(self.is_scores, products)):
            return "are not merged: no attention multiplies them"
        start = group[0]
        calls = [self.graph.value(position) for position in group]
        widths = [tensor.shape[-1] for tensor in map(region_tensor, calls) if tensor is not None]
        out = Bindings()
        joiner = ColumnJoiner(self.graph, out, widths, start)
        weight = joiner.join([call.args[1] for call in calls])
        if weight is None:
            return "are not merged: their weights cannot be concatenated"
        first = calls[0]
        out.name = self.names(group)
        value = out.emit(with_args(first, [first.args[0], weight]))
        ends: Sequence[int] = group
        # Joins the operators that follow every product.
        while (joined := self.joined(ends, value, joiner)) is not None:
            ends, value = joined
        users = map(self.only_user, ends)
        following = [self.graph.value(user) for user in users if user is not None]
        if any(is_call(call, "relax.quantize") for call in following):
            return "are not merged: they are quantised with different constants"
        # Slices that no product reads in place cost time.
        tensors = [region_tensor(self.graph.value(end)) for end in ends if self.is_copied(end)]
        cycles = SLICE_CYCLES * sum(tensor.size for tensor in tensors if tensor is not None)
        saved, lost = self.saved_us(group), cycles / self.machine.cycles_per_us
        if saved < lost:
            return f"are not merged: {lost:.1f} us lost by reading slices, {saved:.1f} us saved"
        self.inserted[start] = out.bindings
        axis, column = len(value.ty.shape.values) - 1, 0
        for position, width in zip(ends, widths, strict=True):
            end = column + width
            self.replaced[position] = relax.op.strided_slice(value, [axis], [column], [end])
            column = end
        for position in group:  # nothing needs the weights any more
            binding, call = self.graph.bindings[position], self.graph.value(position)
            nothing = with_args(call, [call.args[0], relax.Var("merged", call.args[1].ty)])
            self.graph.bindings[position] = relax.VarBinding(binding.var, nothing)
            self.merged.add(position)
        columns = " + ".join(map(str, widths))
        return f"are merged into {columns} columns: {saved:.1f} us saved, {lost:.1f} us lost"

    def names(self, positions: Sequence[int]) -> str:
        """A name for the merged value of several bindings, which contains all their names."""
        return "".join(str(self.graph.bindings[position].var.name) for position in positions)

    def only_user(self, position: int) -> int | None:
        """Position of the only binding that uses the value bound at a position, else None."""
        return self.graph.only_user(self.graph.bindings[position].var)

    def joined(
        self, ends: Sequence[int], value: relax.Var, joiner: ColumnJoiner
    ) -> tuple[Sequence[int], relax.Var] | None:
        """The operators after all products, and their merged value; None if they cannot be
        merged."""
        users = [user for user in map(self.only_user, ends) if user is not None]
        calls = [self.graph.value(user) for user in users]
        if len(users) < len(ends) or op_name(calls[0]) not in JOINED or not alike(calls):
            return None
        first = calls[0]
        arguments: list[relax.Expr] = []
        for each in zip(*(call.args for call in calls), strict=True):
            own = [
                argument.same_as(self.graph.bindings[end].var)
                for argument, end in zip(each, ends, strict=True)
            ]
            argument = value if all(own) else None if any(own) else joiner.join(each)
            if argument is None:
                return None
            arguments.append(argument)
        joiner.out.name = self.names(users)
        joined = joiner.out.emit(with_args(first, arguments))
        wanted, result = known_tensor(first), known_tensor(joined)
        fits = result.shape == (*wanted.shape[:-1], sum(joiner.widths))
        return (users, joined) if fits else None

    def saved_us(self, group: Sequence[int]) -> float:
        """Estimated microseconds saved in calls, forks and separate conversion kernels."""
        fork = self.machine.fork_us(self.machine.threads)
        saved = (len(group) - 1) * (self.machine.call_us + fork)
        source = self.graph.value(group[0]).args[0]
        if len(self.graph.users[source]) > len(group):
            return saved
        call = self.graph.definition(source)
        while keeps_order(call) and self.graph.only_user(call.args[0]) is not None:
            call = self.graph.definition(call.args[0])
        while is_call(call, "relax.subtract", "relax.astype"):
            if str(call.ty.dtype) in ("bfloat16", "float16"):
                return saved + self.conversion_us(call, 1)
            call = self.graph.definition(call.args[0])
        if isinstance(call, relax.Call) and op_name(call) == "relax.quantize":
            dynamic = isinstance(call.args[1], relax.Var)
            saved += self.conversion_us(call, 2) if dynamic else 0.0
        return saved

    def conversion_us(self, call: relax.Call, kernels: int) -> float:
        """Microseconds of kernels that only convert, or only find the range for a conversion."""
        tensor = region_tensor(call)
        cycles = CONVERSION_CYCLES * (0 if tensor is None else tensor.size)
        return kernels * self.machine.call_us + cycles / self.machine.cycles_per_us

    def is_copied(self, position: int) -> bool:
        """Whether any operator that is not moving elements comes before the products."""
        users = self.graph.users.get(self.graph.bindings[position].var, [])
        for user in users:
            name = op_name(self.graph.value(user))
            if name != "relax.matmul" and (name not in MOVING or self.is_copied(user)):
                return True
        return False

    def products(self, position: int) -> set[int] | None:
        """Products of two tensors that a value reaches; None if it reaches anything else."""
        found: set[int] = set()
        var = self.graph.bindings[position].var
        pending, seen = [var], {var}
        while pending:
            value = pending.pop()
            if not isinstance(value, relax.DataflowVar):
                return None
            for user in self.graph.users.get(value, []):
                call = self.graph.value(user)
                result = self.graph.bindings[user].var
                if is_call(call, "relax.matmul"):
                    if user in self.merged or self.weight(call.args[1]) is not None:
                        return None
                    found.add(user)
                elif op_name(call) not in BETWEEN and isinstance(call, relax.Call):
                    return None
                elif result not in seen:
                    seen.add(result)
                    pending.append(result)
        return found or None

    def is_scores(self, product: int) -> bool:
        """Whether a softmax follows a product."""
        position: int | None = product
        while position is not None:
            if op_name(self.graph.value(position)) == "relax.nn.softmax":
                return True
            position = self.only_user(position)
            if position is not None and op_name(self.graph.value(position)) == "relax.matmul":
                return False
        return False


# Joins the arguments of equal operators on several tensors along the last axis.
#
# (w0 [K, N0], w1 [K, N1])              ->  [K, N0 + N1]
# (bias [N0], scalar)                   ->  [N0 + N1]
# (s * c0 [N0], s * c1 [N1]), s shared  ->  s * [N0 + N1]


# Operators between a product and its constants: a weight's zero point, scales found at run time.
_REBUILT = ("relax.astype", "relax.subtract", "relax.add", "relax.multiply", "relax.divide")


class ColumnJoiner:
    """Joins expressions of one block, and emits the operators that the joined ones need.

    Parameters
    ----------
    graph : DataflowGraph
        The block.
    out : Bindings
        Receives the operators that joining emits.
    widths : sequence of int
        Columns of each tensor.
    end : int
        Position before which every shared variable must be bound.
    """

    def __init__(
        self, graph: DataflowGraph, out: Bindings, widths: Sequence[int], end: int
    ) -> None:
        self.graph, self.out, self.widths, self.end = graph, out, tuple(widths), end

    def join(self, exprs: Sequence[relax.Expr]) -> relax.Expr | None:
        """The merged operator's argument from those of the single ones; None if there is none."""
        if all(isinstance(expr, ir.GenericConst) for expr in exprs):
            return self._constants(exprs)
        if all(expr.same_as(exprs[0]) for expr in exprs):
            return exprs[0] if self._is_shared(exprs[0]) else None
        found = [self.graph.definition(expr) for expr in exprs]
        first = found[0]
        if not is_call(first, *_REBUILT) or not alike(found):
            return None
        columns = zip(*(call.args for call in found if call is not None), strict=True)
        joined = [self.join(arguments) for arguments in columns]
        arguments = [argument for argument in joined if argument is not None]
        known = len(arguments) == len(joined)
        return self.out.emit(with_args(first, arguments)) if known else None

    def _is_shared(self, expr: relax.Expr) -> bool:
        """Whether a value is equal for all columns and bound early enough."""
        tensor = region_tensor(expr)
        position = self.graph.position.get(expr)
        in_time = position is None or position < self.end
        return tensor is not None and tensor.shape[-1:] in ((), (1,)) and in_time

    def _constants(self, exprs: Sequence[relax.Expr]) -> relax.Expr | None:
        arrays = [array_of(expr.value) for expr in exprs]
        if len({array.dtype for array in arrays}) > 1:
            return None
        if all(array.size == 1 and (array == arrays[0]).all() for array in arrays):
            return exprs[0]
        rank = max(1, *(array.ndim for array in arrays))
        parts = []
        for array, width in zip(arrays, self.widths, strict=True):
            full = array.reshape((1,) * (rank - array.ndim) + array.shape)
            if full.shape[-1] not in (1, width):
                return None
            parts.append(np.broadcast_to(full, (*full.shape[:-1], width)))
        if len({part.shape[:-1] for part in parts}) > 1:
            return None
        whole = aligned_empty((*parts[0].shape[:-1], sum(self.widths)), arrays[0].dtype)
        return constant_of(np.concatenate(parts, axis=-1, out=whole))


def alike(calls: Sequence[relax.Expr | None]) -> bool:
    """Whether all expressions call one operator with equal attributes."""
    first = calls[0]
    return isinstance(first, relax.Call) and all(
        isinstance(call, relax.Call)
        and call.op.same_as(first.op)
        and len(call.args) == len(first.args)
        and tvm_ffi.structural_equal(call.attrs, first.attrs)
        for call in calls
    )

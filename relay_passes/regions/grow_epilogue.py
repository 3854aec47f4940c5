"""Grows a region: finds the operators after an anchor that are computed in its registers.

Operators are taken in order while they are fusible. Then the region is reduced to the largest part
of which exactly one value is needed outside. Reshapes that only regroup leading dimensions do not
end a region, and a final permutation may become part of the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm import relax

from relay_passes.ir.axes import permutation
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor
from relay_passes.ir.traits import RESHAPES
from tir_schedules.core.region import Region, Tensor

from .fusible_calls import ACC, CAST_DTYPES, STEPS, VALUE_DTYPES, EpilogueSteps, Value, plain_step
from .integer_anchor import Anchor

MAX_OPERANDS = 12
MAY_BE_INLINED = {  # what `fusible_calls` computes anew in the regions that read it
    *("relax.dequantize", "relax.astype", "relax.multiply"),
    *("relax.strided_slice", "relax.reshape"),
}
FLAT_ROWS = ("matmul", "weight_only_matmul")  # templates that see rows and columns only


@dataclass
class Growth:
    """A region while it grows.

    Attributes
    ----------
    members : list of int
        Positions of the bindings inside, in order; the anchor is the first.
    result : relax.Var
        The one value needed outside.
    epilogue : EpilogueSteps
        What is computed after the anchor.
    """

    anchor: Anchor
    output: Tensor
    members: list[int]
    result: relax.Var
    epilogue: EpilogueSteps

    def copy(self) -> Growth:
        """An independent copy, to come back to."""
        return replace(self, members=list(self.members), epilogue=self.epilogue.copy())

    def region(self) -> Region:
        """The region as it stands, its values numbered."""
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
    """The largest region around an anchor; None if not even the anchor can be built.

    Parameters
    ----------
    graph : DataflowGraph
        The block; if it says not to fuse, the region is the anchor alone.
    anchor : Anchor
        Where to start.
    accepts : callable
        Whether the template can build a region.
    """
    var = graph.bindings[anchor.position].var
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
        # Fusible if its result, which has the values' shape, is a value.
        value = STEPS.get(name, plain_step)(graph, growth.epilogue, call)
        if value is None or len(growth.epilogue.operands) > MAX_OPERANDS:
            return False
        growth.epilogue.values[binding.var] = value
        if output.dtype != "bool":
            growth.output = Tensor(growth.output.shape, output.dtype)
    growth.members.append(position)
    return True


def _through_reshape(growth: Growth, source: relax.Expr, output: Tensor) -> Value | None:
    """The value behind a reshape that keeps the last dimension; None of another one."""
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
    """Takes a permutation that is the result's only use into the store of a batch_matmul."""
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

"""Merges calls of region functions: the part that all merging passes share.

A pass has a matcher. In a block of a partitioned module, it finds what one kernel shall compute:
calls of region functions, and operators between them (reshape, permute_dims, ...), called glue.

Before

    lv = fused_batch_matmul(q, k)
    lv1 = fused_softmax(lv)
    lv2 = R.reshape(v, R.shape([2, 4, 8]))
    gv = fused_batch_matmul1(lv1, lv2)

After

    gv = fused_attention(q, k, v)

    @R.function(private=True)
    def fused_attention(p0, p1, p2):
        R.func_attr({"Composite": "tvm_hybrid.attention", "tvm_hybrid.region": "{...}",
                     "tvm_hybrid.reason": "template attention: ..."})
        ...the operators of all three functions, and the reshape...

Glue with other users is also kept in place. If a matcher refuses a call, its function keeps the
reason as an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.errors import CompileError
from microkernels.base.tvm_compat.relax import function_adder
from relay_passes.ir import functions
from relay_passes.ir.functions import REASON, REGION, called_region, region_of, substitute
from relay_passes.ir.graph import DataflowGraph, region_tensor, relax_shape
from relay_passes.ir.rewrite import Bindings, rewrite_blocks
from tir_schedules.core.attributes import Source
from tir_schedules.core.region import Region, Tensor


class RegionGraph(DataflowGraph):
    """A dataflow block of a partitioned module.

    Parameters
    ----------
    block : relax.DataflowBlock
        The block.
    mod : IRModule
        Holds the region functions that the block calls.
    """

    def __init__(self, block: relax.DataflowBlock, mod: IRModule) -> None:
        super().__init__(block)
        self.callees: dict[int, relax.Function] = {}
        self.regions: dict[int, Region] = {}
        for position in range(len(self.bindings)):
            callee = called_region(mod, self.value(position))
            if callee is not None:
                self.callees[position] = callee
                self.regions[position] = region_of(callee)

    def calls(self, *kinds: str) -> list[int]:
        """Positions of calls of regions of some kinds; of all kinds if none is given."""
        return [at for at, region in self.regions.items() if not kinds or region.op in kinds]

    def region_of(self, expr: relax.Expr) -> int | None:
        """Position of the region call whose result is an expression, else None."""
        position = self.position.get(expr) if isinstance(expr, relax.Var) else None
        return position if position in self.regions else None

    def still_needed(self, members: Sequence[int], result: int) -> set[int]:
        """Members, other than the result, that anything besides the result's binding needs.

        Parameters
        ----------
        members : sequence of int
            Positions of the bindings that are merged.
        result : int
            The member whose value replaces all members.
        """
        needed: set[int] = set()
        for position in sorted({*members} - {result}, reverse=True):
            var = self.bindings[position].var
            users = {*self.users.get(var, ())} - {result}
            outside = users - {*members} or not isinstance(var, relax.DataflowVar)
            if outside or users & needed:
                needed.add(position)
        return needed


@dataclass(frozen=True)
class Merge:
    """A merge of several bindings into one region function.

    Attributes
    ----------
    members : tuple of int
        Positions of the merged bindings: region calls and glue. The last one binds the result, the
        only result of a merged region call that is needed outside.
    region : Region
        The merged region, with its parts.
    arguments : tuple of relax.Expr
        The values of region.inputs, then of region.operands: values that members use, or constants.
        An argument whose shape differs from that in the region is reshaped.
    reason : str
        The reason that `explain` shows.
    """

    members: tuple[int, ...]
    region: Region
    arguments: tuple[relax.Expr, ...]
    reason: str = ""


@dataclass
class Findings:
    """What a matcher found in a block: merges and refusals.

    Attributes
    ----------
    merges : list of Merge
        The merges; no two share a region call.
    refusals : dict
        Position of a region call -> why it is not merged, in words.
    """

    merges: list[Merge] = field(default_factory=list)
    refusals: dict[int, str] = field(default_factory=dict)


Matcher = Callable[[RegionGraph], Findings]
Add = Callable[[relax.Function, str], ir.GlobalVar]


def merging_pass(name: str, match: Matcher) -> ir.transform.Pass:
    """A module pass that merges what a matcher finds.

    Parameters
    ----------
    name : str
        Name of the pass.
    match : callable
        Block -> merges and refusals.
    """

    @module_pass(opt_level=0, name=name)
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder = relax.BlockBuilder(mod)
        add = function_adder(builder, mod, REGION)

        def rewritten(block: relax.DataflowBlock) -> list[relax.Binding] | None:
            """The block with one call for every merge; bindings that became unused stay in it."""
            graph = RegionGraph(block, mod)
            found = match(graph)
            if not found.merges and not found.refusals:
                return None
            merges: dict[int, Merge] = {}
            merged: set[int] = set()
            for merge in found.merges:
                calls = {position for position in merge.members if position in graph.regions}
                needed = graph.still_needed(merge.members, merge.members[-1])
                if calls & (merged | needed):
                    names = [str(graph.bindings[position].var.name) for position in sorted(calls)]
                    raise CompileError(f"{merge.region.op} of {names}: a part is needed elsewhere")
                merged |= calls
                merges[merge.members[-1]] = merge
            bindings: list[relax.Binding] = []
            for position, binding in enumerate(graph.bindings):
                if position in merges:
                    bindings += _call(add, graph, merges[position])
                elif position in found.refusals and position not in merged:
                    bindings.append(_refused(add, graph, position, found.refusals[position]))
                else:
                    bindings.append(binding)
            return bindings

        return rewrite_blocks(builder, rewritten)

    return run


def _call(add: Add, graph: RegionGraph, merge: Merge) -> list[relax.Binding]:
    """The bindings that replace the last binding of a merge: views of arguments, and the call."""

    def fill(inner: relax.BlockBuilder, values: dict[relax.Expr, relax.Expr]) -> None:
        """Emits all members as ordinary Relax: operators, and bodies of region functions."""
        for position in merge.members:
            var, value = graph.bindings[position].var, graph.value(position)
            callee = graph.callees.get(position)
            if var in values:  # it is an argument
                continue
            if callee is None:
                values[var] = inner.emit(substitute(value, values))
                continue
            given = (substitute(argument, values) for argument in value.args)
            inside: dict[relax.Expr, relax.Expr] = dict(zip(callee.params, given, strict=True))
            values[var] = functions.emit_body(inner, callee, inside)

    return region_call(add, graph, merge, fill)


Fill = Callable[[relax.BlockBuilder, dict[relax.Expr, relax.Expr]], None]


def region_call(add: Add, graph: DataflowGraph, merge: Merge, fill: Fill) -> list[relax.Binding]:
    """The bindings that replace a region's operators: views of arguments, and the call.

    Parameters
    ----------
    add : callable
        Adds the region function to the module, as `function_adder` returns it.
    merge : Merge
        The merge; its members may be bindings of any kind.
    fill : callable
        Emits the region's computation; the dict maps arguments to parameters, and receives the
        value of the result.
    """
    result, region, given = graph.bindings[merge.members[-1]].var, merge.region, merge.arguments
    views = Bindings()
    arguments: list[relax.Expr] = []
    for argument, tensor in zip(given, (*region.inputs, *region.operands), strict=True):
        actual = region_tensor(argument)
        if actual is not None and actual.shape != tensor.shape:
            shape = relax_shape(tensor.shape, argument, result)
            argument = views.emit(relax.op.reshape(argument, shape), "view")
        arguments.append(argument)
    parameters = [relax.Var(f"p{i}", argument.ty) for i, argument in enumerate(arguments)]

    def emit(inner: relax.BlockBuilder) -> relax.Expr:
        values: dict[relax.Expr, relax.Expr] = {}
        for original, parameter in zip(given, parameters, strict=True):
            if original not in values:
                values[original] = functions.emit_as_used(inner, original, parameter)
        fill(inner, values)
        return values[result]

    attrs = {REASON: merge.reason} if merge.reason else {}
    function = functions.region_function(region, parameters, emit, attrs)
    gvar = add(function, f"fused_{region.op}")
    call = relax.Call(gvar, arguments, ret_ty=result.ty)
    return [*views.bindings, relax.VarBinding(result, call)]


def _refused(add: Add, graph: RegionGraph, position: int, reason: str) -> relax.Binding:
    """A region call whose function keeps the reason why it is not merged."""
    callee, region = graph.callees[position], graph.regions[position]
    before = str(callee.attrs.get(REASON, f"template {region.op}"))
    own = relax.utils.copy_with_new_vars(callee)  # other calls may keep the shared function
    gvar = add(own.with_attr(REASON, f"{before}; {reason}"), f"fused_{region.op}")
    var = graph.bindings[position].var
    return relax.VarBinding(var, relax.Call(gvar, graph.value(position).args, ret_ty=var.ty))


@dataclass
class MergedInputs:
    """Inputs of a merged region under construction.

    Attributes
    ----------
    made : dict
        Variable -> number of the part whose result it is.
    arguments, tensors : list
        Expressions from outside the region, and their tensors.
    sources : list
        The source of every input and operand of each part.
    """

    made: dict[relax.Expr, int] = field(default_factory=dict)
    arguments: list[relax.Expr] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    sources: list[list[Source]] = field(default_factory=list)
    _numbers: dict[relax.Expr, int] = field(default_factory=dict)

    def add(self, part: Region, arguments: Sequence[relax.Expr]) -> None:
        """Adds a part with the arguments of its inputs and operands."""
        pairs = zip(arguments, (*part.inputs, *part.operands), strict=True)
        self.sources.append([self._source(argument, tensor) for argument, tensor in pairs])

    def region(self, kind: str, parts: Sequence[Region]) -> Region:
        """The merged region."""
        return Region(
            op=kind,
            inputs=tuple(self.tensors),
            output=parts[-1].output,
            attrs={"sources": tuple(map(tuple, self.sources))},
            parts=tuple(parts),
        )

    def _source(self, argument: relax.Expr, tensor: Tensor) -> Source:
        """The source of an argument; a constant is always a new input: each part packs its own."""
        if argument in self.made:
            return Source(True, self.made[argument])
        if argument in self._numbers:
            return Source(False, self._numbers[argument])
        number = len(self.tensors)
        if isinstance(argument, relax.Var):
            self._numbers[argument] = number
        self.arguments.append(argument)
        self.tensors.append(tensor)
        return Source(False, number)

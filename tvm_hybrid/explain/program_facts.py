"""ProgramFacts: the facts about a compiled module that the runtime needs, collected once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import IRModule, ir, relax
from tvm.relax.analysis import has_reshape_pattern
from tvm.runtime import Tensor

from relay_passes.ir.entries import INTO_ENTRY, MAIN
from relay_passes.ir.functions import TAKES_BITS, UNALIGNED
from relay_passes.ir.graph import nodes_in
from relay_passes.vm.entries import INTO_OUTPUTS

from ..library.manifest import BoundOutput
from .program_graph import ProgramGraph, named_graph

Bindings: TypeAlias = Sequence[relax.VarBinding | relax.MatchCast]

_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
_NAMES = (relax.Var, relax.Tuple, relax.TupleGetItem)  # give values names, and read no memory


@dataclass(frozen=True)
class SingleKernel:
    """The only kernel of a model with one input and one output.

    Attributes
    ----------
    function : str
        The kernel, whose parameters are the input, the constants and the output.
    constants : tuple of tvm.runtime.Tensor
        The kernel's constants, such as packed weights.
    takes_bits : bool
        Whether the kernel takes bfloat16 tensors as their bits (uint16).
    """

    function: str
    constants: tuple[Tensor, ...]
    takes_bits: bool = False


@dataclass(frozen=True)
class ProgramFacts:
    """Facts about a lowered module, in which kernels are called by `call_tir`.

    Attributes
    ----------
    graph : ProgramGraph
        Kernels and the tensors between them.
    names : list of list of str
        The variables of each value of the graph, those of its views included.
    kernel : SingleKernel or None
        The program's kernel, if it has no other and needs no aligned tensors. Calling it directly
        takes half the time of a call through the virtual machine.
    shared_outputs : tuple of bool
        For every output, whether it may share memory with something that outlives the call: it is
        a view of an input or a weight, or is returned twice. True if in doubt. Sessions copy it.
    unaligned_inputs : tuple of bool
        For every input, whether its array may have any alignment; False if in doubt. Templates and
        generic schedules only need alignment to an element. AMX kernels are faster on whole cache
        lines.
    bound_outputs : tuple of BoundOutput
        The outputs that the program can write into memory of the caller.
    """

    graph: ProgramGraph
    names: list[list[str]]
    kernel: SingleKernel | None
    shared_outputs: tuple[bool, ...]
    unaligned_inputs: tuple[bool, ...]
    bound_outputs: tuple[BoundOutput, ...]


def program_facts(mod: IRModule) -> ProgramFacts:
    """Collects the facts about a lowered module."""
    main = mod[MAIN]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    graph, names = named_graph(main, bindings)
    has_entry = INTO_ENTRY in [gvar.name_hint for gvar in mod.get_global_vars()]
    notes = mod[INTO_ENTRY].attrs[INTO_OUTPUTS] if has_entry else ()
    return ProgramFacts(
        graph=graph,
        names=names,
        kernel=_single_kernel(mod, main, bindings),
        shared_outputs=_shared_outputs(mod, main, bindings),
        unaligned_inputs=_unaligned_inputs(mod, main, bindings),
        bound_outputs=tuple(
            BoundOutput(number, cache if cache >= 0 else None, bool(anywhere), bool(has_room))
            for number, cache, anywhere, has_room in (map(int, note) for note in notes)
        ),
    )


def _single_kernel(mod: IRModule, main: relax.Function, bindings: Bindings) -> SingleKernel | None:
    call = bindings[0].value if bindings else None
    if not isinstance(call, relax.Call) or call.op != ir.Op.get("relax.call_tir"):
        return None
    names = {bindings[0].var}
    for binding in bindings[1:]:
        if binding.value not in names:
            return None
        names.add(binding.var)
    if main.body.body not in names or not isinstance(call.ty_args[0], relax.TensorType):
        return None
    if len(call.args) != 2 or len(main.params) != 1 or UNALIGNED not in mod[call.args[0]].attrs:
        return None
    first, *constants = call.args[1].fields or (None,)
    if first is None or not first.same_as(main.params[0]):
        return None
    if not all(isinstance(constant, ir.GenericConst) for constant in constants):
        return None
    name = str(call.args[0].name_hint)
    takes_bits = TAKES_BITS in mod[call.args[0]].attrs
    return SingleKernel(name, tuple(constant.value for constant in constants), takes_bits)


def _shared_outputs(mod: IRModule, main: relax.Function, bindings: Bindings) -> tuple[bool, ...]:
    values = {each.var: each.value for each in bindings if isinstance(each, relax.VarBinding)}
    result = _resolve(main.body.body, values)
    is_tuple = isinstance(result, relax.Tuple)
    outputs = [_resolve(field, values) for field in result.fields] if is_tuple else [result]

    def is_fresh(value: relax.Expr) -> bool:
        """Whether a kernel writes a value into newly allocated memory."""
        if isinstance(value, relax.TupleGetItem):
            value = value.tuple_value
        if not isinstance(value, relax.Call) or value.op != ir.Op.get("relax.call_tir"):
            return False
        return not has_reshape_pattern(mod[value.args[0]])

    same = [sum(_is_same(output, other) for other in outputs) for output in outputs]
    return tuple(not is_fresh(each) or n > 1 for each, n in zip(outputs, same, strict=True))


def _resolve(value: relax.Expr, values: dict[relax.Var, relax.Expr]) -> relax.Expr:
    """Follows variables and tuple fields to the call that computes a value, or to its field."""
    while True:
        if isinstance(value, relax.Var) and value in values:
            value = values[value]
            continue
        if isinstance(value, relax.TupleGetItem):
            source = _resolve(value.tuple_value, values)
            if isinstance(source, relax.Tuple):
                value = source.fields[value.index]
                continue
            return relax.TupleGetItem(source, value.index)
        return value


def _is_same(one: relax.Expr, other: relax.Expr) -> bool:
    if isinstance(one, relax.TupleGetItem) and isinstance(other, relax.TupleGetItem):
        return one.index == other.index and bool(one.tuple_value.same_as(other.tuple_value))
    return bool(one.same_as(other))


def _unaligned_inputs(mod: IRModule, main: relax.Function, bindings: Bindings) -> tuple[bool, ...]:
    strict: set[relax.Var] = set()
    for binding in reversed(bindings):
        value = getattr(binding, "value", None)
        if isinstance(value, _NAMES):
            if binding.var in strict:
                _demand(value, strict)
        elif not isinstance(value, relax.Call):
            _demand(value, strict)
        elif isinstance(value.op, ir.Op) and value.op.name in _VIEWS:
            if binding.var in strict:
                _demand(value.args[0], strict)
        elif not (
            isinstance(value.op, ir.Op)
            and value.op.name == "relax.call_tir"
            and UNALIGNED in (mod[value.args[0]].attrs or {})
        ):
            _demand(value, strict)
    return tuple(parameter not in strict for parameter in main.params)


def _demand(expr: relax.Expr | None, strict: set[relax.Var]) -> None:
    """Adds the variables of an expression to `strict`: their memory must be aligned."""

    if expr is not None:
        strict.update(node for node in nodes_in(expr) if isinstance(node, relax.Var))

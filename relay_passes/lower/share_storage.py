"""Share storage: tensors of different open sizes that do not live together get the same memory.

Before

    a = R.memory.alloc_storage(R.shape([n * 1536]), ...)
    x = R.memory.alloc_tensor(a, 0, R.shape([n, 384]), "float32")
    cls.kernel(input, x)
    b = R.memory.alloc_storage(R.shape([n * 6144]), ...)
    y = R.memory.alloc_tensor(b, 0, R.shape([n, 1536]), "float32")
    cls.kernel1(x, y)
    c = R.memory.alloc_storage(R.shape([n * 768]), ...)
    z = R.memory.alloc_tensor(c, 0, R.shape([n, 192]), "float32")
    cls.kernel2(y, z)

After

    a = R.memory.alloc_storage(R.shape([max(n * 1536, n * 768)]), ...)
    ...
    z = R.memory.alloc_tensor(a, 0, R.shape([n, 192]), "float32")

TVM plans memory of known sizes; of open ones it shares what has just the same size. Every call for
a storage takes a shape, a lock and a search. What the function returns keeps memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import tvm_ffi
from tvm import IRModule, ir, relax, te, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.sym import Analyzer

from relay_passes.ir.graph import AnyBinding, op_name
from relay_passes.ir.region_functions import substitute
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks
from relay_passes.ir.used_variables import variables
from tir_schedules.generic.expressions import substitute as substitute_symbols
from tir_schedules.generic.expressions import variables_of

_ALLOCATE = "relax.memory.alloc_storage"
_SAMPLE = 64  # what every symbol is taken for to compare sizes


def share_storage() -> ir.transform.Pass:
    """The pass; it comes between LowerAllocTensor and size_classes."""

    @module_pass(opt_level=0, name="tvm_hybrid.share_storage")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, _shared)

    return run


@dataclass
class _Slot:
    """Memory that is used by one storage after the other."""

    var: relax.Var
    last: int  # the number of the binding that uses it last
    sizes: list[tirx.Expr] = field(default_factory=list)

    @property
    def size(self) -> tirx.Expr:
        return reduce(te.max, self.sizes)

    def has(self, size: tirx.Expr) -> bool:
        """Whether it is taken for just so many bytes already."""
        return any(tvm_ffi.structural_equal(size, each) for each in self.sizes)

    def distance(self, size: tirx.Expr) -> float:
        """By which factor a size is larger or smaller, about."""
        here, there = max(map(_sample, self.sizes)), _sample(size)
        return max(here, there) / max(1, min(here, there))


def _shared(function: relax.Function) -> relax.Function:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If | relax.Function) for binding in bindings):
        return function
    lives = _lives(bindings, function)
    slots: list[_Slot] = []
    slot_of: dict[relax.Var, _Slot] = {}
    for binding in bindings:
        if binding.var not in lives:
            continue
        (size,) = binding.value.args[0].values
        slot = _free(slots, size, lives[binding.var].start)
        if slot is None:
            slot = _Slot(binding.var, 0)
            slots.append(slot)
        if not slot.has(size):
            slot.sizes.append(size)
        slot.last = lives[binding.var].stop
        slot_of[binding.var] = slot
    return _with_slots(function, bindings, slot_of) if slots else function


def _with_slots(
    function: relax.Function, bindings: Sequence[AnyBinding], slot_of: Mapping[relax.Var, _Slot]
) -> relax.Function:
    """The function with one storage for each slot, where it is used first."""
    names: dict[relax.Expr, relax.Expr] = {var: slot.var for var, slot in slot_of.items()}
    kept: list[AnyBinding] = []
    for binding in bindings:
        slot = slot_of.get(binding.var)
        if slot is None:
            kept.append(_renamed(binding, names))
        elif slot.var.same_as(binding.var):
            call = binding.value
            arguments = [relax.ShapeExpr([slot.size]), *list(call.args)[1:]]
            value = relax.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)
            kept.append(relax.VarBinding(binding.var, value))
    return with_blocks(function, [relax.BindingBlock(kept)])


def _renamed(binding: AnyBinding, names: Mapping[relax.Expr, relax.Expr]) -> AnyBinding:
    call = binding.value
    if not isinstance(call, relax.Call) or not any(each in names for each in call.args):
        return binding
    arguments = [substitute(argument, names) for argument in call.args]
    value = relax.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)
    return relax.VarBinding(binding.var, value)


def _free(slots: Sequence[_Slot], size: tirx.Expr, start: int) -> _Slot | None:
    """The slot that is used no more and whose size is nearest; None if there is none."""
    free = [slot for slot in slots if slot.last < start]
    same = [slot for slot in free if slot.has(size)]
    return min(same or free, key=lambda slot: slot.distance(size), default=None)


def _lives(bindings: Sequence[AnyBinding], function: relax.Function) -> dict[relax.Var, range]:
    """Storages of open sizes that are not returned: their first and last binding.

    Any result of what uses a storage is taken to lie in it.
    """
    arguments = {symbol for parameter in function.params for symbol in _told_by(parameter)}
    first: dict[relax.Var, int] = {}
    last: dict[relax.Var, int] = {}
    owners: dict[relax.Var, set[relax.Var]] = {}
    for number, binding in enumerate(bindings):
        used = {owner for var in variables(binding.value) for owner in owners.get(var, ())}
        last.update(dict.fromkeys(used, number))
        if _is_open_storage(binding.value, arguments):
            first[binding.var] = number
            used = {binding.var}
        owners[binding.var] = used
    returned = {owner for var in variables(function.body.body) for owner in owners.get(var, ())}
    return {var: range(first[var], last.get(var, first[var])) for var in first.keys() - returned}


def _told_by(parameter: relax.Var) -> set[tirx.Var]:
    """The symbols that are sizes of an argument."""
    sizes = getattr(getattr(parameter.ty, "shape", parameter.ty), "values", None) or ()
    return {size for size in sizes if isinstance(size, tirx.Var)}


def _is_open_storage(value: relax.Expr, arguments: set[tirx.Var]) -> bool:
    """Whether it allocates as many bytes as arguments of the function tell."""
    if op_name(value) != _ALLOCATE:
        return False
    (size,) = value.args[0].values
    symbols = variables_of(size)
    return bool(symbols) and symbols <= arguments


def _sample(size: tirx.Expr) -> int:
    """A size with a usual number for every symbol."""
    usual = {symbol: tirx.const(_SAMPLE, "int64") for symbol in variables_of(size)}
    return int(Analyzer().simplify(substitute_symbols(size, usual)))

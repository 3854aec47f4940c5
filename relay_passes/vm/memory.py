"""Memory of dynamic sizes: allocated, shared, rounded up to size classes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from tvm import IRModule, ir, relax, te, tirx
from tvm.sym import Analyzer

from microkernels.base.tvm_compat.relax import structural_key
from tir_schedules.generic.expressions import substitute, variables_of

from ..ir import rewrite
from ..ir.functions import named_pass, rebound, renamed, with_blocks
from ..ir.graph import AnyBinding, bindings_of, op_name, packed_name, static_tensor, variables

_ALLOCATE = "relax.memory.alloc_storage"
_SAMPLE = 64  # value of every symbol for the comparison of sizes


@named_pass
def share_storage(mod: IRModule) -> IRModule:
    """Share storage: tensors of different dynamic sizes share memory if they do not live together.

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

    TVM plans memory of static sizes; for dynamic sizes it shares only equal ones. Every call for a
    storage takes a shape, a lock and a search. The results of the function keep separate memory.

    It must run between LowerAllocTensor and size_classes.
    """

    return rewrite.map_functions(mod, rewrite.is_relax, _shared)


@dataclass
class _Slot:
    """Memory that several storages use one after the other."""

    var: relax.Var
    last: int  # number of the last binding that uses it
    sizes: dict[Hashable, tirx.Expr] = field(default_factory=dict)  # distinct ones, by structure

    @property
    def size(self) -> tirx.Expr:
        return reduce(te.max, self.sizes.values())

    def distance(self, size: tirx.Expr) -> float:
        """The approximate factor between a size and the slot's size, at least 1."""
        here, there = max(map(_sample, self.sizes.values())), _sample(size)
        return max(here, there) / max(1, min(here, there))


def _shared(function: relax.Function) -> relax.Function:
    bindings = bindings_of(function)
    if any(isinstance(binding.value, relax.If | relax.Function) for binding in bindings):
        return function
    lives = _lives(bindings, function)
    slots: list[_Slot] = []
    slot_of: dict[relax.Var, _Slot] = {}
    for binding in bindings:
        if binding.var not in lives:
            continue
        (size,) = binding.value.args[0].values
        key = structural_key(size)
        # Takes the free slot with the nearest size.
        free = [slot for slot in slots if slot.last < lives[binding.var].start]
        same = [slot for slot in free if key in slot.sizes]
        slot = min(same or free, key=partial(_Slot.distance, size=size), default=None)
        if slot is None:
            slot = _Slot(binding.var, 0)
            slots.append(slot)
        slot.sizes.setdefault(key, size)
        slot.last = lives[binding.var].stop
        slot_of[binding.var] = slot
    if not slots:
        return function
    names: dict[relax.Expr, relax.Expr] = {var: slot.var for var, slot in slot_of.items()}
    kept: list[AnyBinding] = []
    for binding in bindings:
        slot = slot_of.get(binding.var)
        if slot is None:
            kept.append(rebound(binding, renamed(binding.value, names)))
        elif slot.var.same_as(binding.var):
            kept.append(relax.VarBinding(binding.var, _allocating(binding.value, slot.size)))
    return with_blocks(function, [relax.BindingBlock(kept)])


def _allocating(call: Any, size: tirx.Expr) -> relax.Call:
    """The allocation with another size in bytes."""
    arguments = [relax.ShapeExpr([size]), *list(call.args)[1:]]
    return relax.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)


def _lives(bindings: Sequence[AnyBinding], function: relax.Function) -> dict[relax.Var, range]:
    """First and last binding of storages of dynamic size that are not returned."""
    arguments: set[tirx.Expr] = set()
    for parameter in function.params:
        arguments.update(
            getattr(getattr(parameter.ty, "shape", parameter.ty), "values", None) or ()
        )
    first: dict[relax.Var, int] = {}
    last: dict[relax.Var, int] = {}
    owners: dict[relax.Var, set[relax.Var]] = {}
    for number, binding in enumerate(bindings):
        # A result of any call that uses a storage is assumed to lie in it.
        used = {owner for var in variables(binding.value) for owner in owners.get(var, ())}
        last.update(dict.fromkeys(used, number))
        if op_name(binding.value) == _ALLOCATE:
            symbols = variables_of(binding.value.args[0].values[0])
        else:
            symbols = set()
        if symbols and symbols <= arguments:
            first[binding.var] = number
            used = {binding.var}
        owners[binding.var] = used
    returned = {owner for var in variables(function.body.body) for owner in owners.get(var, ())}
    return {var: range(first[var], last.get(var, first[var])) for var in first.keys() - returned}


def _sample(size: tirx.Expr) -> int:
    """A size with the sample for every symbol."""
    usual = {symbol: tirx.const(_SAMPLE, "int64") for symbol in variables_of(size)}
    return int(Analyzer().simplify(substitute(size, usual)))


_KILL, _TENSOR = "relax.vm.kill_object", "relax.vm.alloc_tensor"
_MAKE = ("vm.builtin.make_shape", "vm.builtin.make_prim_value")  # made from numbers of the heap


@named_pass
def share_objects(mod: IRModule) -> IRModule:
    """Share objects: makes each shape or size once, and one tensor for each place in memory.

    Before

        s = R.call_packed("vm.builtin.make_shape", heap, 2, 1, 0, 0, 384)
        x = R.vm.alloc_tensor(storage, 0, s, "float32")
        cls.kernel(a, x)
        cls.kernel1(x, b)
        R.vm.kill_object(x)
        t = R.call_packed("vm.builtin.make_shape", heap, 2, 1, 0, 0, 384)
        y = R.vm.alloc_tensor(storage, 0, t, "float32")
        cls.kernel(b, y)
        R.vm.kill_object(y)

    After

        s = R.call_packed("vm.builtin.make_shape", heap, 2, 1, 0, 0, 384)
        x = R.vm.alloc_tensor(storage, 0, s, "float32")
        cls.kernel(a, x)
        cls.kernel1(x, b)
        cls.kernel(b, x)
        R.vm.kill_object(x)

    Each of these calls takes about a microsecond. Tensors that are planned at one place are never
    alive at the same time.

    It must run after VMShapeLower.
    """

    return rewrite.map_functions(mod, rewrite.is_relax, _with_shared_objects)


def _with_shared_objects(function: relax.Function) -> relax.Function:
    made = bindings_of(function)
    if any(isinstance(binding.value, relax.If) for binding in made):
        return function  # a branch may let go of what it did not make
    firsts: dict[Hashable, relax.Var] = {}
    names: dict[relax.Expr, relax.Expr] = {}  # a variable -> the first variable of an equal object
    last_kills: dict[relax.Expr, int] = {}
    bindings: list[AnyBinding] = []
    for original in made:
        binding = rebound(original, renamed(original.value, names))
        value = binding.value
        key = _key(value) if isinstance(binding, relax.VarBinding) else None
        first = binding.var if key is None else firsts.setdefault(key, binding.var)
        if not first.same_as(binding.var):
            names[binding.var] = first
            last_kills.pop(first, None)  # it is used again
            continue
        if op_name(value) == _KILL:
            last_kills[value.args[0]] = len(bindings)
        bindings.append(binding)

    def is_needed(number: int, value: relax.Expr) -> bool:
        return op_name(value) != _KILL or last_kills.get(value.args[0]) == number

    kept = [each for number, each in enumerate(bindings) if is_needed(number, each.value)]
    return with_blocks(function, [relax.BindingBlock(kept)], renamed(function.body.body, names))


def _key(value: relax.Expr) -> Hashable | None:
    """A key that is equal for calls that make equal objects; None for other calls."""
    if op_name(value) == _TENSOR:
        storage, offset, shape, *rest = value.args
        sizes = shape if isinstance(shape, relax.Var) else _numbers(shape.values)
        place = _numbers([offset])
        return None if None in (sizes, place) else (_TENSOR, storage, place, sizes, *map(str, rest))
    if packed_name(value) not in _MAKE:
        return None
    heap, *numbers = value.args
    known = _numbers(numbers)
    return None if known is None else (packed_name(value), heap, known)


def _numbers(values: Sequence[object]) -> tuple[int, ...] | None:
    """The values as numbers; None if one is unknown."""
    found = [int(value) for value in values if isinstance(value, tirx.IntImm)]
    return tuple(found) if len(found) == len(values) else None


@named_pass
def allocate_empty(mod: IRModule) -> IRModule:
    """Allocate: makes an empty tensor at run time instead of keeping it as a constant.

    Before

        return const                                    # R.Tensor((2, 0), "float32")

    After

        empty = R.builtin.alloc_tensor(R.shape([2, 0]), "float32", 0)
        return empty

    TVM 0.27 writes such a constant, but cannot read it again unless the first size is 0.

    It must run between CallTIRRewrite and the planning of memory.
    """

    def allocated(constant: ir.GenericConst) -> relax.Expr | None:
        tensor = static_tensor(constant)
        if tensor is None or tensor.size:
            return None
        call = relax.op.builtin.alloc_tensor(relax.ShapeExpr(tensor.shape), tensor.dtype, 0)
        return relax.BlockBuilder().normalize(call)

    return rewrite.bind_constants(mod, "empty", allocated)


SMALLEST = 4096  # bytes; the pool rounds up to pages
_INDEX = "int64"


@named_pass
def size_classes(mod: IRModule) -> IRModule:
    """Size classes: rounds memory of dynamic size up to powers of two.

    Before

        R.memory.alloc_storage(R.shape([n * 1536]), ...)

    After

        R.memory.alloc_storage(R.shape([1 << (64 - clz(max(n * 1536, 4096) - 1))]), ...)

    TVM's memory pool reuses a block only for a request of exactly its size. A program that runs
    with any length would keep blocks of all lengths; with size classes it keeps one for each power
    of two. Pages after the needed bytes are never written to, so they take no memory.

    It must run between LowerAllocTensor and VMShapeLower.
    """

    def rounded(binding: relax.VarBinding) -> relax.Expr | None:
        call = binding.value
        if op_name(call) != _ALLOCATE:
            return None
        (size,) = call.args[0].values
        return None if isinstance(size, tirx.IntImm) else _allocating(call, power_of_two(size))

    return rewrite.map_values(mod, rounded)


def power_of_two(size: tirx.Expr) -> tirx.Expr:
    """The smallest power of two that is at least `size` and at least `SMALLEST`."""
    last = te.max(size, tirx.const(SMALLEST, _INDEX)) - 1
    bits = tirx.const(64, _INDEX) - tirx.clz(last).astype(_INDEX)
    return tirx.shift_left(tirx.const(1, _INDEX), bits)

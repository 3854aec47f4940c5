"""Memory of dynamic sizes: allocated, shared, rounded up to classes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import tvm_ffi
from tvm import IRModule, ir, relax, te, tirx
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from relay_passes.ir.functions import substitute
from relay_passes.ir.graph import AnyBinding, op_name, static_tensor, variables
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks, with_body, with_values
from tir_schedules.generic.expressions import substitute as substitute_symbols
from tir_schedules.generic.expressions import variables_of

_ALLOCATE = "relax.memory.alloc_storage"
_SAMPLE = 64  # what every symbol is taken for to compare sizes


def share_storage() -> ir.transform.Pass:
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

    TVM plans memory of known sizes; of open ones it shares what has just the same size. Every call
    for a storage takes a shape, a lock and a search. What the function returns keeps memory of its
    own.

    The pass; it comes between LowerAllocTensor and size_classes.
    """

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


_KILL, _ALLOCATE_object = "relax.vm.kill_object", "relax.vm.alloc_tensor"
_MAKE = ("vm.builtin.make_shape", "vm.builtin.make_prim_value")  # of numbers of the heap


def share_objects() -> ir.transform.Pass:
    """Share objects: makes a shape or a size once, and a tensor once for each place in memory.

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

    Either call takes about a microsecond. What is planned to lie at one place does not live at the
    same time.

    The pass; it comes after VMShapeLower.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.share_objects")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, _shared_object)

    return run


def _shared_object(function: relax.Function) -> relax.Function:
    made = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If) for binding in made):
        return function  # a branch may let go of what it did not make
    firsts: dict[Hashable, relax.Var] = {}
    names: dict[relax.Expr, relax.Expr] = {}  # a variable -> the first one of its object
    last_kills: dict[relax.Expr, int] = {}
    bindings: list[AnyBinding] = []
    for binding in made:
        value = _renamed_object(binding.value, names)
        if not isinstance(binding, relax.VarBinding):
            bindings.append(relax.MatchCast(binding.var, value, binding.ty))
            continue
        key = _key(value)
        first = binding.var if key is None else firsts.setdefault(key, binding.var)
        if not first.same_as(binding.var):
            names[binding.var] = first
            last_kills.pop(first, None)  # it is used again
            continue
        if op_name(value) == _KILL:
            last_kills[value.args[0]] = len(bindings)
        bindings.append(relax.VarBinding(binding.var, value))

    def is_needed(number: int, value: relax.Expr) -> bool:
        return op_name(value) != _KILL or last_kills.get(value.args[0]) == number

    kept = [each for number, each in enumerate(bindings) if is_needed(number, each.value)]
    result = _renamed_object(function.body.body, names)
    return with_blocks(function, [relax.BindingBlock(kept)], result)


def _renamed_object(expr: relax.Expr, names: Mapping[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression with other variables, and the type that it has."""
    if not isinstance(expr, relax.Call):
        return substitute(expr, names)
    arguments = [substitute(argument, names) for argument in expr.args]
    return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args, ret_ty=expr.ty)


def _key(value: relax.Expr) -> Hashable | None:
    """What says that two calls give the same object; None if nothing does."""
    if op_name(value) == _ALLOCATE_object:
        storage, offset, shape, *rest = value.args
        sizes = shape if isinstance(shape, relax.Var) else _numbers(shape.values)
        place = _numbers([offset])
        return (
            None
            if None in (sizes, place)
            else (_ALLOCATE_object, storage, place, sizes, *map(str, rest))
        )
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.ExternFunc):
        return None
    name = str(value.op.global_symbol)
    if name not in _MAKE:
        return None
    heap, *numbers = value.args
    known = _numbers(numbers)
    return None if known is None else (name, heap, known)


def _numbers(values: Sequence[object]) -> tuple[int, ...] | None:
    """Numbers, if they all are known."""
    found = [int(value) for value in values if isinstance(value, tirx.IntImm)]
    return tuple(found) if len(found) == len(values) else None


def allocate_empty() -> ir.transform.Pass:
    """Allocate: makes a tensor without elements at run time instead of keeping it as a constant.

    Before

        return const                                    # R.Tensor((2, 0), "float32")

    After

        empty = R.builtin.alloc_tensor(R.shape([2, 0]), "float32", 0)
        return empty

    TVM 0.27 writes such a constant, but cannot read it again where the first size is not 0.

    The pass; it comes between CallTIRRewrite and the planning of memory.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.allocate_empty")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, _allocated)

    return run


def _allocated(function: relax.Function) -> relax.Function:
    found = _EmptyConstants()
    body = found.visit_expr(function.body)
    if not found.bindings:
        return function
    blocks = [relax.BindingBlock(found.bindings), *body.blocks]
    whole = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, body.body))
    assert isinstance(whole, relax.SeqExpr)
    return with_body(function, whole)


@mutator
class _EmptyConstants(PyExprMutator):
    """Names every constant without elements, and binds the names in `bindings`."""

    def __init__(self) -> None:
        super().__init__()
        self.bindings: list[relax.Binding] = []

    def visit_generic_const_(self, constant: ir.GenericConst) -> relax.Expr:
        """The constant, or the variable in its place."""
        tensor = static_tensor(constant)
        if tensor is None or tensor.size:
            return constant
        call = relax.op.builtin.alloc_tensor(relax.ShapeExpr(tensor.shape), tensor.dtype, 0)
        var = relax.Var("empty", constant.ty)
        self.bindings.append(relax.VarBinding(var, self.builder_.normalize(call)))
        return var


SMALLEST = 4096  # bytes; the pool rounds up to pages
_INDEX = "int64"


def size_classes() -> ir.transform.Pass:
    """Size classes: memory whose size only a run knows comes in powers of two.

    Before

        R.memory.alloc_storage(R.shape([n * 1536]), ...)

    After

        R.memory.alloc_storage(R.shape([1 << (64 - clz(max(n * 1536, 4096) - 1))]), ...)

    TVM's pool keeps every block, and gives it again to who asks for just as many bytes. A program
    that runs with any length would keep blocks of all lengths; so it keeps one for each power of
    two. What nobody writes to behind the bytes that are needed takes no memory.

    The pass; it comes between LowerAllocTensor and VMShapeLower.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.size_classes")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, lambda function: with_values(function, _rounded))

    return run


def _rounded(binding: relax.VarBinding) -> relax.Expr | None:
    call = binding.value
    if op_name(call) != "relax.memory.alloc_storage":
        return None
    (size,) = call.args[0].values
    if isinstance(size, tirx.IntImm):
        return None
    arguments = [relax.ShapeExpr([power_of_two(size)]), *list(call.args)[1:]]
    return relax.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)


def power_of_two(size: tirx.Expr) -> tirx.Expr:
    """The least power of two that is not less."""
    last = te.max(size, tirx.const(SMALLEST, _INDEX)) - 1
    bits = tirx.const(64, _INDEX) - tirx.clz(last).astype(_INDEX)
    return tirx.shift_left(tirx.const(1, _INDEX), bits)

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

Either call takes about a microsecond. What is planned to lie at one place does not live at the same
time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.graph import AnyBinding, op_name
from relay_passes.ir.region_functions import substitute
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks

_KILL, _ALLOCATE = "relax.vm.kill_object", "relax.vm.alloc_tensor"
_MAKE = ("vm.builtin.make_shape", "vm.builtin.make_prim_value")  # of numbers of the heap


def share_objects() -> ir.transform.Pass:
    """The pass; it comes after VMShapeLower."""

    @module_pass(opt_level=0, name="tvm_hybrid.share_objects")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, _shared)

    return run


def _shared(function: relax.Function) -> relax.Function:
    made = [binding for block in function.body.blocks for binding in block.bindings]
    if any(isinstance(binding.value, relax.If) for binding in made):
        return function  # a branch may let go of what it did not make
    firsts: dict[Hashable, relax.Var] = {}
    names: dict[relax.Expr, relax.Expr] = {}  # a variable -> the first one of its object
    last_kills: dict[relax.Expr, int] = {}
    bindings: list[AnyBinding] = []
    for binding in made:
        value = _renamed(binding.value, names)
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
    result = _renamed(function.body.body, names)
    return with_blocks(function, [relax.BindingBlock(kept)], result)


def _renamed(expr: relax.Expr, names: Mapping[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression with other variables, and the type that it has."""
    if not isinstance(expr, relax.Call):
        return substitute(expr, names)
    arguments = [substitute(argument, names) for argument in expr.args]
    return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args, ret_ty=expr.ty)


def _key(value: relax.Expr) -> Hashable | None:
    """What says that two calls give the same object; None if nothing does."""
    if op_name(value) == _ALLOCATE:
        storage, offset, shape, *rest = value.args
        sizes = shape if isinstance(shape, relax.Var) else _numbers(shape.values)
        place = _numbers([offset])
        return (
            None if None in (sizes, place) else (_ALLOCATE, storage, place, sizes, *map(str, rest))
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

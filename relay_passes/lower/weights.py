"""Weights: packed for their kernels, computed once, or handed in from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.ir import GenericConst
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.runtime import Tensor

from microkernels.base.memory import return_freed_memory
from microkernels.base.tvm_compat.relax import object_address
from microkernels.isa import Isa
from relay_passes.ir.constants import array_of, bytes_of, constant_of, constants_in
from relay_passes.ir.functions import (
    emit_body,
    is_region_function,
    region_function,
    region_of,
    renamed,
    with_args,
)
from relay_passes.ir.graph import op_name, static_tensor
from relay_passes.ir.move_functions import move_functions, take_callers, take_values
from relay_passes.ir.rewrite import Bindings, is_relax, map_functions, with_blocks
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.generic.expressions import guard_floats
from tir_schedules.generic.vector_math import lower_math

from .codegen import kernel_context
from .lower_regions import config_of

# Prepack: stores constant inputs of regions in the layout that their kernels read.
#
# Before
#
#     gv = fused_matmul(x, const_w, b)            # const_w: [K, N]
#
# After
#
#     gv = fused_matmul(x, const_packed, b)       # const_packed: flat panels, made at compile time
#
#     def fused_matmul(x, packed, b):
#         w = ...slices of packed, put together...   # the function keeps its meaning
#
# What is no constant has been packed already (see `pack_open_weights`).


MOST_KEPT = 1 << 24  # bytes that have been packed since freed memory was given back
PACKED = "tvm_hybrid.packed"


def prepack(isa: Isa, meaning: bool = True) -> ir.transform.Pass:
    """The pass; equal weights packed alike share one constant.

    It takes all functions out of its module, so that each weight can go when it has been packed.
    Without `meaning` the region functions stay as they are: for a compiler that reads their regions
    only.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.prepack")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        regions = move_functions(mod)
        callers = take_callers(regions)
        builder, renamed = (
            _unpacking(regions, isa) if meaning else (relax.BlockBuilder(regions), {})
        )
        packer = _Packer(regions, renamed, isa, callers.values())
        packed = builder.get()
        for gvar in list(callers):
            packed.update_func(gvar, take_values(callers, gvar, packer.packed_call))
        return packed

    return run


class _Packer:
    """Packs the weights of calls, one after the other; a packed one is kept while it is needed."""

    def __init__(
        self,
        regions: IRModule,
        renamed: Mapping[ir.GlobalVar, ir.GlobalVar],
        isa: Isa,
        callers: Iterable[relax.Function],
    ) -> None:
        self._regions, self._renamed, self._isa = regions, renamed, isa
        # By address: a key that is the constant would keep it.
        self._packed: dict[int, dict[str, relax.Expr]] = {}
        self._kept_bytes = 0
        self._waiting: Counter[int] = Counter()
        for function in callers:
            for block in function.body.blocks:
                for binding in block.bindings[:]:
                    self._waiting.update(map(object_address, self._weights(binding.value)))

    def packed_call(self, binding: relax.VarBinding) -> relax.Expr | None:
        """The call of a region with packed weights; None for any other value."""
        call = binding.value
        function = self._callee(call)
        if function is None:
            return None
        arguments = list(call.args)
        for index in packed_inputs(function):
            if isinstance(arguments[index], ir.GenericConst):
                arguments[index] = self._weight(function, index, arguments[index])
        return relax.Call(self._renamed.get(call.op, call.op), arguments, ret_ty=call.ty)

    def _callee(self, value: relax.Expr) -> relax.Function | None:
        """The region function that a value calls."""
        is_call = isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar)
        function = self._regions[value.op] if is_call and value.op in self._regions else None
        return function if is_region_function(function) else None

    def _weights(self, value: relax.Expr) -> list[relax.Expr]:
        function = self._callee(value)
        weights = [] if function is None else [value.args[i] for i in packed_inputs(function)]
        return [each for each in weights if isinstance(each, ir.GenericConst)]

    def _weight(self, function: relax.Function, index: int, weight: relax.Expr) -> relax.Expr:
        region = region_of(function)
        config = config_of(function, region)
        place, layout = object_address(weight), _layout(region, config, index)
        known = self._packed.setdefault(place, {})
        if layout not in known:
            packing = template_for(region.op).packing
            assert packing is not None  # as packed_inputs says
            array = packing.pack(region, config, self._isa, index, array_of(weight.value))
            known[layout] = constant_of(array)
            self._give_back(array.nbytes)
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._packed[place]
        return known[layout]

    def _give_back(self, size: int) -> None:
        """Gives Linux the memory of weights that are gone; glibc seldom finds a use for it."""
        self._kept_bytes += size
        if self._kept_bytes > MOST_KEPT:
            return_freed_memory()
            self._kept_bytes = 0


def _unpacking(
    mod: IRModule, isa: Isa
) -> tuple[relax.BlockBuilder, dict[relax.GlobalVar, relax.GlobalVar]]:
    """A builder with region functions that unpack their weights, and their names.

    A global variable carries its function's type, so a changed function needs a new one.
    """
    regions = {g: f for g, f in mod.functions_items() if is_region_function(f)}
    others = {g: f for g, f in mod.functions_items() if g not in regions}
    builder = relax.BlockBuilder(IRModule(others, mod.attrs, mod.global_infos))
    renamed = {
        gvar: builder.add_func(_with_unpacking(function, isa), gvar.name_hint)
        for gvar, function in regions.items()
    }
    return builder, renamed


def _layout(region: Region, config: Config, index: int) -> str:
    """What packing depends on besides the constant, such as the zero point of the other factor."""
    attrs = sorted(region.attrs.items())
    inputs = f"{region.inputs[0].dtype} {region.inputs[1:]}"
    return f"{region.op} {index} {config} {attrs} {inputs} {region.parts}"


def packed_inputs(function: relax.Function) -> list[int]:
    """Which inputs of a region function are to be packed."""
    region = region_of(function)
    is_packed = template_for(region.op).packing is None or PACKED in function.attrs
    return [] if is_packed else _constant_inputs(region)


def _constant_inputs(region: Region) -> list[int]:
    return [index for index, tensor in enumerate(region.inputs) if tensor.constant]


def _with_unpacking(function: relax.Function, isa: Isa) -> relax.Function:
    """The region function with packed parameters, which its body unpacks first."""
    region = region_of(function)
    packing, constants = template_for(region.op).packing, packed_inputs(function)
    if packing is None or not constants:
        return function
    config = config_of(function, region)
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
    for index in constants:
        shape = packing.shape(region, config, isa, index)
        ty = relax.TensorType(shape, region.inputs[index].dtype)
        parameters[index] = relax.Var(function.params[index].name, ty)

    def emit(builder: relax.BlockBuilder) -> relax.Expr:
        values: dict[relax.Expr, relax.Expr] = dict(zip(function.params, parameters, strict=True))
        for index in constants:
            unpacked = packing.unpack(region, config, isa, index, parameters[index])
            values[function.params[index]] = builder.emit(unpacked)
        return emit_body(builder, function, values)

    return region_function(region, parameters, emit, {**function.attrs, PACKED: True})


_Packed = tuple[relax.Expr, relax.Expr]  # the expression that packs a weight, and its variable


def pack_open_weights(isa: Isa) -> ir.transform.Pass:
    """Packs weights that are parameters by operators on them, in front of the regions that read
    them.

    Before

        gv = fused_matmul(x, w, b)                      # w: [K, N], a parameter

    After

        lv = R.strided_slice(w, axes=[1], begin=[0], end=[48])
        lv1 = R.reshape(lv, R.shape([K * 48]))
        lv2 = R.concat((lv1, ...), axis=0)              # what `prepack` makes of constants
        gv = fused_matmul(x, lv2, b)

    These are weights of convolutions, and of products where a function says what its weights are. A
    weight that several regions read in the same layout is packed once.
    `relax.transform.LiftTransformParams` moves these operators into a function of their own.

    The pass, right before `prepack`, which makes the regions take packed weights.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.pack_open_weights")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        def packed(function: relax.Function) -> relax.Function:
            blocks = [_packed(mod, block, isa) for block in function.body.blocks]
            return with_blocks(function, blocks)

        def calls_regions(function: object) -> bool:
            return is_relax(function) and not is_region_function(function)

        return map_functions(mod, calls_regions, packed)

    return run


def _packed(mod: IRModule, block: relax.BindingBlock, isa: Isa) -> relax.BindingBlock:
    """A block in which regions read packed weights."""
    packed = Bindings()
    known: dict[relax.Expr, list[_Packed]] = {}
    for binding in block.bindings[:]:
        value = binding.value
        if _calls_region(mod, value):
            function, arguments = mod[value.op], list(value.args)
            for index in packed_inputs(function):
                weight = arguments[index]
                if not isinstance(weight, ir.GenericConst):
                    expr = _expressed(function, isa, index, weight)
                    arguments[index] = _once(packed, expr, known.setdefault(weight, []))
            call = relax.Call(value.op, arguments, ret_ty=value.ty)
            packed.bindings.append(relax.VarBinding(binding.var, call))
        else:
            packed.bindings.append(binding)
    return type(block)(packed.bindings)


def _once(block: Bindings, expr: relax.Expr, known: list[_Packed]) -> relax.Expr:
    """The variable of an expression, bound where it was first needed."""
    for other, var in known:
        if tvm_ffi.structural_equal(expr, other):
            return var
    var = _emitted(block, expr, {})
    known.append((expr, var))
    return var


def _calls_region(mod: IRModule, value: relax.Expr) -> bool:
    is_call = isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar)
    return is_call and is_region_function(mod[value.op])


def _expressed(function: relax.Function, isa: Isa, index: int, weight: relax.Expr) -> relax.Expr:
    """A packed weight in terms of the weight."""
    region = region_of(function)
    packing = template_for(region.op).packing
    assert packing is not None  # partition made no others
    return packing.express(region, config_of(function, region), isa, index, weight)


def _emitted(block: Bindings, expr: relax.Expr, known: dict[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression of operators, each bound to a variable once."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_emitted(block, each, known) for each in expr.fields])
    if not isinstance(expr, relax.Call):
        return expr
    if expr not in known:
        arguments = [_emitted(block, each, known) for each in expr.args]
        known[expr] = block.emit(with_args(expr, arguments))
    return known[expr]


# A program asks for each outside weight in every run; that takes 0.07 us on a Zen 3, where a kernel
# reads so many bytes in 7 us.
OUTSIDE_BYTES = 1 << 18


def with_outside_weights(mod: IRModule, name: str, least: int) -> tuple[IRModule, list[Tensor]]:
    """Outside weights: functions take large constants from whoever loads the program.

    Before

        def main(x):
            cls.kernel(x, packed, y)
            return y

    After

        def main(x):
            weight = R.call_packed("name", 0)
            cls.kernel(x, weight, y)
            return y

    `name` is a function that returns one of all these tensors. TVM's virtual machine looks for it
    where it looks for kernels. So a library can have its weights in any form, and a program is
    small.

    A module that the virtual machine's code is made of, with the weights outside of it.

    Parameters
    ----------
    mod : IRModule
        Lowered as far as TVM's virtual machine wants. It stays as it is.
    name : str
        The function to call for a weight by its number.
    least : int
        Constants of fewer bytes stay where they are.

    Returns
    -------
    tuple of IRModule and list of tvm.runtime.Tensor
        The module, and what the function is to return for 0, 1 and so on. No tensor is copied.
    """
    numbers: dict[Tensor, int] = {}

    def changed(function: relax.Function) -> relax.Function:
        large = [each for each in constants_in(function) if bytes_of(each.value) >= least]
        for each in large:
            numbers.setdefault(each.value, len(numbers))
        return _changed(function, name, {each: numbers[each.value] for each in large})

    return map_functions(mod, is_relax, changed), list(numbers)


def _changed(
    function: relax.Function, name: str, numbers: Mapping[GenericConst, int]
) -> relax.Function:
    if not numbers:
        return function
    bindings: list[relax.Binding] = []
    items: dict[relax.Expr, relax.Expr] = {}
    taken: dict[int, relax.Var] = {}
    for constant, number in numbers.items():
        if number not in taken:
            taken[number] = relax.Var("weight", constant.ty)
            item = relax.Call(
                relax.ExternFunc(name), [relax.prim_value(number)], ret_ty=constant.ty
            )
            bindings.append(relax.VarBinding(taken[number], item))
        items[constant] = taken[number]
    body = renamed(function.body, items)
    return with_blocks(function, [relax.BindingBlock(bindings), *body.blocks], body.body)


_NAME = "folded"


def fold_constants() -> ir.transform.Pass:
    """Folds constants: runs kernels whose arguments are all constants, once, at compile time.

    Before

        lv = R.call_tir(softplus, (const_x,))

    After

        lv = const

    TVM's FoldConstant runs kernels as TVM wrote them, where a minimum loses a NaN, and ends the
    process at a function that only our kernels have. Here a kernel is lowered as those that stay
    are.

    The pass; it comes after the legalisation of operators.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.fold_constants")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        folder = _Folder(mod)
        for gvar, function in mod.functions_items():
            if is_relax(function):
                folder.builder_.update_func(gvar, folder.visit_expr(function))
        folded = relax.transform.CanonicalizeBindings()(folder.builder_.get())
        return relax.transform.DeadCodeElimination()(folded)

    return run


@mutator
class _Folder(PyExprMutator):
    """Replaces calls of kernels on constants."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels = dict(mod.functions_items())

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        """Folds one call if it can be."""
        call = super().visit_call_(op)
        result = static_tensor(call)
        if op_name(call) != "relax.call_tir" or result is None or 0 in result.shape:
            return call
        constants = [self._constant(argument) for argument in call.args[1].fields]
        kernel = self._kernels.get(call.args[0])
        known = [each for each in constants if each is not None]
        if len(known) < len(constants) or not isinstance(kernel, tirx.PrimFunc):
            return call
        if len(call.args) > 2:  # sizes that depend on data
            return call
        body = lower_math(guard_floats(kernel.body))
        kernel = kernel.with_body(body).with_attr("global_symbol", _NAME)
        # Whoever dumps every pass wants those of the model.
        with PassContext(opt_level=3), kernel_context([kernel]):
            compiled = tvm.compile(IRModule({_NAME: kernel}), target={"kind": "llvm"})
        made = tvm.runtime.empty(result.shape, result.dtype)
        compiled[_NAME](*[each.value for each in known], made)
        return relax.const(made.numpy(), result.dtype)

    def _constant(self, expr: relax.Expr) -> ir.GenericConst | None:
        """The constant that an argument is, or None."""
        known = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return known if isinstance(known, ir.GenericConst) else None

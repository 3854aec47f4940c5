"""Weights: packed for their kernels, folded, or supplied from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import tvm
from tvm import IRModule, ir, relax
from tvm.ir import GenericConst
from tvm.ir.transform import PassContext
from tvm.runtime import Tensor

from microkernels.base.memory import return_freed_memory
from microkernels.base.tvm_compat.relax import object_address, structural_key
from microkernels.isa import Isa
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import PackedInput, template_for
from tir_schedules.generic.expressions import guard_floats
from tir_schedules.generic.vector_math import lower_math

from ..ir import functions, rewrite
from ..ir.constants import array_of, bytes_of, constant_of
from ..ir.functions import called_region, is_region_function, named_pass, region_of, with_blocks
from ..ir.graph import bindings_of, is_call, static_tensor
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
# Weights that are no constants have been packed already (see `pack_dynamic_weights`).


MOST_KEPT = 1 << 26  # bytes packed before freed memory is returned to the system
PACKED = "tvm_hybrid.packed"


@named_pass
def prepack(mod: IRModule, isa: Isa, meaning: bool = True) -> IRModule:
    """The pass; equal weights with equal packing share one constant.

    It moves all functions out of its module, so that each weight is freed once it has been packed.
    Without `meaning` the region functions are not changed: for a compiler that reads only their
    regions.
    """
    regions = rewrite.move_functions(mod)
    callers = rewrite.take_callers(regions)
    builder, renamed = relax.BlockBuilder(regions), dict[ir.GlobalVar, ir.GlobalVar]()
    if meaning:
        # A global variable carries its function's type, so a changed function needs a new one.
        changed = {g: f for g, f in regions.functions_items() if is_region_function(f)}
        others = {g: f for g, f in regions.functions_items() if g not in changed}
        builder = relax.BlockBuilder(IRModule(others, mod.attrs, mod.global_infos))
        for gvar, function in changed.items():
            renamed[gvar] = builder.add_func(_with_unpacking(function, isa), gvar.name_hint)
    packer = _Packer(regions, renamed, isa, callers.values())
    packed = builder.get()
    for gvar in list(callers):
        packed.update_func(gvar, rewrite.take_values(callers, gvar, packer.packed_call))
    return packed


Renamed = Mapping[ir.GlobalVar, ir.GlobalVar]


class _Packer:
    """Packs the weights of calls in turn; a packed weight is kept while a call needs it."""

    def __init__(
        self, regions: IRModule, renamed: Renamed, isa: Isa, callers: Iterable[relax.Function]
    ) -> None:
        self._regions, self._renamed, self._isa = regions, renamed, isa
        # By address: the constant as a key would be kept alive.
        self._packed: dict[int, dict[str, relax.Expr]] = {}
        self._kept_bytes = 0
        self._waiting: Counter[int] = Counter()
        for binding in (each for function in callers for each in bindings_of(function)):
            weights = self._weights(binding.value).values()
            self._waiting.update(map(object_address, weights))

    def packed_call(self, binding: relax.VarBinding) -> relax.Expr | None:
        """The call of a region with packed weights; None for any other value."""
        call = binding.value
        function = self._callee(call)
        if function is None:
            return None
        arguments = list(call.args)
        for index, weight in self._weights(call).items():
            arguments[index] = self._weight(function, index, weight)
        return relax.Call(self._renamed.get(call.op, call.op), arguments, ret_ty=call.ty)

    def _callee(self, value: relax.Expr) -> relax.Function | None:
        """The region function that a value calls; the callers are no longer in the module."""
        callee = getattr(value, "op", None)
        is_there = isinstance(callee, ir.GlobalVar) and callee in self._regions
        return called_region(self._regions, value) if is_there else None

    def _weights(self, value: relax.Expr) -> dict[int, relax.Expr]:
        """The constants to pack for the region that a value calls, by input."""
        function = self._callee(value)
        places = [] if function is None else packed_inputs(function)
        return {at: value.args[at] for at in places if isinstance(value.args[at], GenericConst)}

    def _weight(self, function: relax.Function, index: int, weight: relax.Expr) -> relax.Expr:
        region = region_of(function)
        config = config_of(function)
        place, layout = object_address(weight), _layout(region, config, index)
        known = self._packed.setdefault(place, {})
        if layout not in known:
            array, packed = array_of(weight.value), _packed_input(function, self._isa, index)
            if packed is not None:
                array = packed.pack(array)
            known[layout] = constant_of(array)
            self._kept_bytes += array.nbytes
            if self._kept_bytes > MOST_KEPT:
                return_freed_memory()  # glibc seldom reuses it
                self._kept_bytes = 0
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._packed[place]
        return known[layout]


def _layout(region: Region, config: Config, index: int) -> str:
    """A key of all that packing depends on besides the constant, such as the other zero point."""
    attrs = sorted(region.attrs.items())
    inputs = f"{region.inputs[0].dtype} {region.inputs[1:]}"
    return f"{region.op} {index} {config} {attrs} {inputs} {region.parts}"


def packed_inputs(function: relax.Function) -> list[int]:
    """Numbers of the inputs of a region function to pack."""
    region = region_of(function)
    if template_for(region.op).packing is None or PACKED in function.attrs:
        return []
    return [index for index, tensor in enumerate(region.inputs) if tensor.constant]


def _packed_input(function: relax.Function, isa: Isa, index: int) -> PackedInput | None:
    """The packed form of an input of a region function's kernel; None if it is not packed."""
    region = region_of(function)
    return template_for(region.op).packed_input(region, config_of(function), isa, index)


def _with_unpacking(function: relax.Function, isa: Isa) -> relax.Function:
    """The region function with packed parameters, which its body unpacks first."""
    region = region_of(function)
    constants = packed_inputs(function)
    if not constants:
        return function
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
    found = ((index, _packed_input(function, isa, index)) for index in constants)
    packed = {index: each for index, each in found if each is not None}
    for index, each in packed.items():
        ty = relax.TensorType(each.shape, region.inputs[index].dtype)
        parameters[index] = relax.Var(function.params[index].name, ty)

    def emit(builder: relax.BlockBuilder) -> relax.Expr:
        values: dict[relax.Expr, relax.Expr] = dict(zip(function.params, parameters, strict=True))
        for index, each in packed.items():
            values[function.params[index]] = builder.emit(each.unpack(parameters[index]))
        return functions.emit_body(builder, function, values)

    return functions.region_function(region, parameters, emit, {**function.attrs, PACKED: True})


@named_pass
def pack_dynamic_weights(mod: IRModule, isa: Isa) -> IRModule:
    """Packs weights that are parameters by operators, before the regions that read them.

    Before

        gv = fused_matmul(x, w, b)                      # w: [K, N], a parameter

    After

        lv = R.strided_slice(w, axes=[1], begin=[0], end=[48])
        lv1 = R.reshape(lv, R.shape([K * 48]))
        lv2 = R.concat((lv1, ...), axis=0)              # `prepack` does this to constants
        gv = fused_matmul(x, lv2, b)

    These are weights of convolutions, and weights of products if a function declares its weights. A
    weight that several regions read in one layout is packed once.
    `relax.transform.LiftTransformParams` moves these operators into a separate function.

    The pass must run right before `prepack`, which makes the regions read packed weights.
    """

    def packed(function: relax.Function) -> relax.Function:
        return with_blocks(function, (_packed(mod, block, isa) for block in function.body.blocks))

    return rewrite.map_functions(mod, rewrite.is_ordinary, packed)


def _packed(mod: IRModule, block: relax.BindingBlock, isa: Isa) -> relax.BindingBlock:
    """A block in which regions read packed weights."""
    packed = rewrite.Bindings()
    known: dict[Hashable, relax.Expr] = {}  # key of a packing expression -> its variable
    for binding in block.bindings[:]:
        value = binding.value
        function = called_region(mod, value)
        inputs = [] if function is None else packed_inputs(function)
        places = [index for index in inputs if not isinstance(value.args[index], GenericConst)]
        if function is None or not places:
            packed.bindings.append(binding)
            continue
        arguments = list(value.args)
        for index in places:
            how = _packed_input(function, isa, index)
            if how is not None:
                expr = how.pack(arguments[index])
                key = structural_key(expr)
                if key not in known:
                    known[key] = _emitted(packed, expr, {})
                arguments[index] = known[key]
        call = relax.Call(value.op, arguments, ret_ty=value.ty)
        packed.bindings.append(relax.VarBinding(binding.var, call))
    return type(block)(packed.bindings)


def _emitted(
    block: rewrite.Bindings, expr: relax.Expr, known: dict[relax.Expr, relax.Expr]
) -> relax.Expr:
    """An expression of operators, each bound to a variable once."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_emitted(block, each, known) for each in expr.fields])
    if not isinstance(expr, relax.Call):
        return expr
    if expr not in known:
        arguments = [_emitted(block, each, known) for each in expr.args]
        known[expr] = block.emit(functions.with_args(expr, arguments))
    return known[expr]


# A program asks for each outside weight in every run; that takes 0.07 us on a Zen 3, where a kernel
# takes 7 us to read this many bytes.
OUTSIDE_BYTES = 1 << 18


def with_outside_weights(mod: IRModule, name: str, least: int) -> tuple[IRModule, list[Tensor]]:
    """Outside weights: functions take large constants from the program's loader.

    Before

        def main(x):
            cls.kernel(x, packed, y)
            return y

    After

        def main(x):
            weight = R.call_packed("name", 0)
            cls.kernel(x, weight, y)
            return y

    `name` is a function that returns one of these tensors. TVM's virtual machine looks for it where
    it looks for kernels. So a library can store its weights in any form, and a program is small.

    Parameters
    ----------
    mod : IRModule
        A module lowered for TVM's virtual machine. It is not changed.
    name : str
        The function to call for a weight, by the weight's number.
    least : int
        Constants of fewer bytes are not replaced.

    Returns
    -------
    tuple of IRModule and list of tvm.runtime.Tensor
        The module, and the tensors to return for 0, 1 and so on. No tensor is copied.
    """
    numbers: dict[Tensor, int] = {}

    def item(constant: GenericConst) -> relax.Expr | None:
        if bytes_of(constant.value) < least:
            return None
        number = relax.prim_value(numbers.setdefault(constant.value, len(numbers)))
        return relax.Call(relax.ExternFunc(name), [number], ret_ty=constant.ty)

    return rewrite.bind_constants(mod, "weight", item), list(numbers)


_NAME = "folded"


@named_pass
def fold_constants(mod: IRModule) -> IRModule:
    """Folds constants: runs kernels whose arguments are all constants, once, at compile time.

    Before

        lv = R.call_tir(softplus, (const_x,))

    After

        lv = const

    TVM's FoldConstant runs kernels as TVM wrote them: a minimum loses a NaN, and a function that
    only our kernels have ends the process. Here a kernel is lowered like all others.

    It must run after the legalisation of operators.
    """
    constants: dict[relax.Expr, GenericConst] = {}  # values of variables

    def folded(binding: relax.VarBinding) -> relax.Expr | None:
        value = _folded(mod, binding.value, constants)
        if isinstance(value, GenericConst):
            constants[binding.var] = value
        return value

    whole = rewrite.map_values(mod, folded)
    plain = relax.transform.CanonicalizeBindings()(whole)
    return rewrite.unread(relax.transform.DeadCodeElimination())(plain)


def _folded(
    mod: IRModule, call: relax.Expr, constants: Mapping[relax.Expr, GenericConst]
) -> relax.Expr:
    """The constant result of a kernel call with constant arguments; any other value unchanged."""
    result = static_tensor(call)
    if not is_call(call, "relax.call_tir") or result is None or 0 in result.shape:
        return call
    found = [constants.get(each, each) for each in call.args[1].fields]
    known = [each for each in found if isinstance(each, GenericConst)]
    kernel = mod[call.args[0]]
    # Further arguments are sizes that depend on data.
    if len(known) < len(found) or not rewrite.is_kernel(kernel) or len(call.args) > 2:
        return call
    body = lower_math(guard_floats(kernel.body))
    kernel = kernel.with_body(body).with_attr("global_symbol", _NAME)
    # With a fresh context, dumps of every pass only contain passes on the model.
    with PassContext(opt_level=3), kernel_context([kernel]):
        compiled = tvm.compile(IRModule({_NAME: kernel}), target={"kind": "llvm"})
    made = tvm.runtime.empty(result.shape, result.dtype)
    compiled[_NAME](*[each.value for each in known], made)
    return relax.const(made.numpy(), result.dtype)

"""Entries of a program besides `main`: outputs into given tensors, weights, release, guards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, IRModule, ir, relax, tirx
from tvm.relax import analysis
from tvm.relax.utils import copy_with_new_vars
from tvm.tirx.buffer import BufferType

from relay_passes.ir import graph
from relay_passes.ir.constants import bytes_of, constants_of
from relay_passes.ir.entries import INTO_ENTRY, MAIN, RELEASE_ENTRY, SHAPES_ENTRY, WEIGHTS_ENTRY
from relay_passes.ir.functions import IN_PLACE, UNALIGNED, VIEW, named_pass
from relay_passes.ir.rewrite import copy_module, is_relax, map_functions

INTO_OUTPUTS = "tvm_hybrid.into_outputs"


@named_pass
def into_entry(mod: IRModule) -> IRModule:
    """Adds an entry that writes a model's outputs into tensors of the caller.

    Before

        def main(x: R.Tensor((n, 8), "float32")):
            lv = R.call_tir(kernel, (x,), out_ty=R.Tensor((n, 8), "float32"))
            return lv

    After, in addition

        def main_into(x: R.Tensor((n, 8), "float32"), out0: R.Tensor((n, 8), "float32")):
            lv = R.call_tir_inplace(kernel, (x, out0), inplace_indices=[1], out_ty=...)
            return lv

        def main_shapes(x: R.Tensor((n, 8), "float32")):
            return (R.shape([n, 8]),)

    It covers outputs that a kernel writes and whose sizes the inputs determine: by their shapes, or
    by a few integers in them (`DeterminedSizes`). A result in another shape is written into the
    output's memory. If `main` computes such a size, `main_into` checks the size of the given
    tensor. `main_shapes` returns the shapes of exactly these outputs. The caller must ensure that
    no tensors overlap, except if a kernel may write a result over an argument (`IN_PLACE`) that is
    an input and that nothing else reads. The attribute `INTO_OUTPUTS` holds for each output: its
    number, the number of such an input or -1, whether it may have any alignment, and whether it may
    have room for more rows.

    It must run when kernels are called by `call_tir`, and all other calls are views.
    """

    if MAIN not in mod or INTO_ENTRY in mod:
        return mod
    main = copy_with_new_vars(mod[MAIN])
    written = written_outputs(mod, main)
    if not written:
        return mod
    updated = copy_module(mod)
    into = _into(main, written).with_attr("global_symbol", INTO_ENTRY)
    notes = [_note(mod, main, each) for each in written]
    updated[INTO_ENTRY] = into.with_attr(INTO_OUTPUTS, notes)
    shapes = _shapes(mod, copy_with_new_vars(mod[MAIN]))  # every function needs its own symbols
    updated[SHAPES_ENTRY] = shapes.with_attr("global_symbol", SHAPES_ENTRY)
    return updated


def _into(main: relax.Function, written: list[Written]) -> relax.Function:
    """The function with a parameter for each of these outputs."""
    taken: dict[relax.Var, dict[int, relax.Var]] = {}
    dataflow = [each for each in main.body.blocks if isinstance(each, relax.DataflowBlock)]
    inside = {binding.var for block in dataflow for binding in block.bindings}
    given, outputs, views = [], dict[relax.Var, relax.Var](), dict[relax.Var, relax.Expr]()
    for each in written:
        given.append(relax.Var(f"out{each.number}", each.ty))
        place = given[-1]
        if each.view is not None:
            outputs[each.view] = given[-1]
            ty = types_of(each.var)[each.result]
            assert ty.shape is not None
            # In a dataflow block, only a DataflowVar becomes a view; an output would be copied.
            kind = relax.DataflowVar if each.var in inside else relax.Var
            place = kind(f"place{each.number}", ty)
            views[place] = relax.op.reshape(given[-1], ty.shape)
        taken.setdefault(each.var, {})[each.result] = place
    builder = relax.BlockBuilder()

    def changed(binding: graph.AnyBinding) -> list[graph.AnyBinding]:
        if binding.var in outputs:
            return [relax.VarBinding(binding.var, outputs[binding.var])]
        if binding.var not in taken:
            return [binding]
        call, outs = binding.value, taken[binding.var]
        types, arguments = types_of(call), list(call.args[1].fields)
        places = [len(arguments) + number if number in outs else -1 for number in range(len(types))]
        results = [outs[number] for number in sorted(outs)]
        given_too = relax.Tuple([*arguments, *results])
        new = relax.op.call_tir_inplace(call.args[0], given_too, places, types)
        shaped = [
            relax.VarBinding(each, builder.normalize(views[each]))
            for each in results
            if each in views
        ]
        return [*shaped, relax.VarBinding(binding.var, builder.normalize(new))]

    blocks = [
        type(block)([new for binding in block.bindings for new in changed(binding)])
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function([*main.params, *given], body, main.ret_ty, main.is_pure, main.attrs)


def _note(mod: IRModule, main: relax.Function, written: Written) -> list[int]:
    """The entry of `INTO_OUTPUTS` for an output."""
    bindings = graph.bindings_of(main)
    (call,) = (each.value for each in bindings if each.var.same_as(written.var))
    attrs, arguments = mod[call.args[0]].attrs or {}, call.args[1].fields
    shared = -1
    if written.view is not None:
        return [written.number, shared, int(UNALIGNED in attrs), 0]
    for argument, result in attrs.get(IN_PLACE, ()):
        if int(result) == written.result:
            place = arguments[int(argument)]
            readers = [*(each.value for each in bindings), main.body.body]
            uses = sum(place in analysis.used_vars(each) for each in readers)
            once = uses == sum(each.same_as(place) for each in arguments) == 1
            inputs = [number for number, each in enumerate(main.params) if each.same_as(place)]
            shared = inputs[0] if inputs and once else -1
    has_room = shared >= 0 and _may_have_room(mod, written, bindings)
    return [written.number, shared, int(UNALIGNED in attrs), int(has_room)]


def _shapes(mod: IRModule, main: relax.Function) -> relax.Function:
    """A function from the inputs to the shapes of the outputs that kernels write."""
    types = [each.ty for each in written_outputs(mod, main)]
    shapes = relax.Tuple([ty.shape for ty in types if ty.shape is not None])
    found = DeterminedSizes(main).bindings(
        var for ty in types for var in analysis.tir_vars_in_type(ty)
    )
    blocks = [relax.DataflowBlock(found)] if found else []
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, shapes))
    return relax.Function(main.params, body, body.ty, is_pure=True)


LEAST_BYTES = 1 << 14  # a few pages: placing smaller constants does not pay


@named_pass
def weights_entry(mod: IRModule) -> IRModule:
    """Adds an entry that returns the large constants of a model, so that a loader can place them.

    Before

        def main(x): ... lv = R.call_tir(kernel, (x, packed), ...) ...

    After, in addition

        def tvm_hybrid_weights():
            gv = (packed, ...)
            return gv

    It must run when constants are packed as kernels read them.
    """

    large = [each for each in constants_of(mod) if bytes_of(each.value) >= LEAST_BYTES]
    if not large or WEIGHTS_ENTRY in mod:
        return mod
    value = relax.BlockBuilder().normalize(relax.Tuple(large))
    var = relax.Var("gv", value.ty)
    return _with_entry(mod, WEIGHTS_ENTRY, [relax.VarBinding(var, value)], var)


def _with_entry(
    mod: IRModule, name: str, bindings: list[relax.Binding], result: relax.Expr
) -> IRModule:
    """A module with an entry without parameters; BlockBuilder would hash the module to add it."""
    blocks = [relax.BindingBlock(bindings)] if bindings else []
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, result))
    added = copy_module(mod)
    added[name] = relax.Function([], body, body.ty, is_pure=True).with_attr("global_symbol", name)
    return added


RELEASE_LEAST_BYTES = 1 << 17  # of all results: smaller results stay in L2 either way
_SAMPLE = 256  # for a dynamic dimension


@named_pass
def release_entry(mod: IRModule) -> IRModule:
    """Adds an entry that releases the last results, to programs with large results.

    Before

        def main(x): ...

    After, in addition

        def tvm_hybrid_release():
            return ()

    TVM's virtual machine keeps the results of the last function until the next one has ended. So
    consecutive runs alternate between two memories, which need twice as much cache. After a call of
    this entry the next run writes where the last one did, if the caller has dropped the results.

    It must run before memory is planned.
    """

    if MAIN not in mod or RELEASE_ENTRY in mod:
        return mod
    result = mod[MAIN].ret_ty
    fields = result.fields if isinstance(result, relax.TupleType) else [result]
    if sum(map(_bytes, fields)) < RELEASE_LEAST_BYTES:
        return mod
    return _with_entry(mod, RELEASE_ENTRY, [], relax.Tuple([]))


def _bytes(field: ir.Type) -> int:
    """Size of a result, with a sample for each dynamic dimension; 0 if the shape is unknown."""
    if not isinstance(field, relax.TensorType) or field.shape is None or not field.dtype:
        return 0
    sizes: Sequence[ir.Expr] = field.shape.values
    known = (int(each.value) if isinstance(each, tirx.IntImm) else _SAMPLE for each in sizes)
    return math.prod(known) * int(DataType(str(field.dtype)).itemsize)


@named_pass
def guard_entries(mod: IRModule, guard: str) -> IRModule:
    """Guard entries: every entry of a module calls a function first.

    Before

        @R.function
        def main(x):
            lv = R.call_tir(kernel, (x,), out_ty=...)
            return lv

    After

        @R.function(pure=False)
        def main(x):
            checked = R.call_packed("tvm_hybrid_require_1f0c", ty_args=(R.Tuple,))
            lv = R.call_tir(kernel, (x,), out_ty=...)
            return lv

    A function that passes must treat as pure whatever it calls (`relax.force_pure`) stays pure. The
    guard raises an error if the CPU cannot run the module's code. TVM's virtual machine looks for
    it in the modules that its executable imports.

    The pass is for a guard of this name; entries that already call it are not changed.
    """

    return map_functions(mod, is_relax, lambda function: _guarded(function, guard))


def _guarded(function: relax.Function, guard: str) -> relax.Function:
    attrs = function.attrs
    if not attrs or "global_symbol" not in attrs or "Codegen" in attrs:
        return function  # it is not called from outside, or a code generator compiles it
    if any(graph.packed_name(binding.value) == guard for binding in graph.bindings_of(function)):
        return function
    nothing = relax.TupleType([])
    call = relax.Call(relax.ExternFunc(guard), [], None, [nothing], ret_ty=nothing)
    first = relax.BindingBlock([relax.VarBinding(relax.Var("checked", nothing), call)])
    whole = relax.SeqExpr([first, *function.body.blocks], function.body.body)
    body = relax.BlockBuilder().normalize(whole)
    forced = bool(function.attrs.get("relax.force_pure"))  # its calls do not make it impure
    return relax.Function(function.params, body, function.ret_ty, forced, function.attrs)


# The outputs of a module that kernels write, and their readers besides the caller.
#
# The inputs determine each size of such an output: by their shapes, or by a few integers in them. A
# tensor that the caller gives may have room for more rows if the kernels that read it support that.


CALL_TIR = ir.Op.get("relax.call_tir")


@dataclass(frozen=True)
class Written:
    """An output that a kernel writes.

    Attributes
    ----------
    number : int
        Number of the output.
    var : relax.Var
        The variable of the kernel's call.
    result : int
        The number of the output among the call's results.
    view : relax.Var or None
        The output's variable, if it is that result in another shape; else None.
    """

    number: int
    var: relax.Var
    result: int
    view: relax.Var | None = None

    @property
    def place(self) -> tuple[relax.Var, int]:
        """The call that computes it, and its number among the call's results."""
        return self.var, self.result

    @property
    def ty(self) -> relax.TensorType:
        """The output's type."""
        return types_of(self.var)[self.result] if self.view is None else types_of(self.view)[0]


def types_of(value: relax.Expr) -> list[relax.TensorType]:
    """The types of the results of a kernel's call."""
    types = list(value.ty.fields) if isinstance(value.ty, relax.TupleType) else [value.ty]
    return [ty for ty in types if isinstance(ty, relax.TensorType)]


def written_outputs(mod: IRModule, main: relax.Function) -> list[Written]:
    """The outputs that kernels of a module write and whose sizes the inputs determine."""
    bindings = [each for each in graph.bindings_of(main) if isinstance(each, relax.VarBinding)]
    values = {each.var: each.value for each in bindings}
    shapes = {var for param in main.params for var in analysis.definable_tir_vars_in_type(param.ty)}
    determined = DeterminedSizes(main)
    found = [
        written
        for number, field in enumerate(_outputs(main, values))
        if (written := _written(mod, field, values, number)) is not None
        and isinstance(written.ty.shape, relax.ShapeExpr)
        and determined.are_determined(used := analysis.tir_vars_in_type(written.ty))
        and {*used} <= shapes | {*analysis.definable_tir_vars_in_type(written.ty)}
    ]
    places = [each.place for each in found]
    plain = [each.place for each in found if each.view is None]
    once = [x for x in found if (plain if x.view is None else places).count(x.place) == 1]
    # A kernel takes its result buffers in order, given ones before the others.
    taken = {each.place for each in once}
    return [x for x in once if all((x.var, before) in taken for before in range(x.result))]


def _outputs(main: relax.Function, values: dict[relax.Var, relax.Expr]) -> list[relax.Expr]:
    """The results of a function, one by one."""
    result = main.body.body
    while isinstance(result, relax.Var) and result in values:
        value = values[result]
        if not isinstance(value, relax.Var | relax.Tuple):
            break
        result = value
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _written(
    mod: IRModule, value: relax.Expr, values: dict[relax.Var, relax.Expr], number: int
) -> Written | None:
    """The kernel call that a value is a result of; None for any other value."""
    result, view = 0, None
    while isinstance(value, relax.Var) and value in values:
        made = values[value]
        if isinstance(made, relax.TupleGetItem):
            value, result = made.tuple_value, made.index
        elif not isinstance(made, relax.Call):
            value = made
        elif graph.is_call(made, "relax.reshape") and view is None:
            view, value = value, made.args[0]
        elif made.op != CALL_TIR:
            return None
        elif VIEW in (mod[made.args[0]].attrs or {}) and view is None:
            view, value = value, made.args[1].fields[0]
        else:
            copies = analysis.has_reshape_pattern(mod[made.args[0]])
            return None if copies else Written(number, value, result, view)
    return None


def _may_have_room(mod: IRModule, written: Written, bindings: list[graph.AnyBinding]) -> bool:
    """Whether all readers of an output support tensors with room for more rows."""
    several = isinstance(written.var.ty, relax.TupleType)
    names = set() if several else {written.var}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(written.var):
            if value.index == written.result:
                names.add(binding.var)
        elif isinstance(value, relax.Var) and value in names:
            names.add(binding.var)
        elif isinstance(value, relax.Call) and value.op == CALL_TIR:
            kernel = mod[value.args[0]]
            for place, argument in enumerate(value.args[1].fields):
                ty = kernel.params[place].ty  # with strides, heads need not be contiguous
                has_strides = isinstance(ty, BufferType) and bool(ty.strides)
                if argument in names and not has_strides:
                    return False
        elif not isinstance(value, relax.Tuple) and names & {*analysis.used_vars(value)}:
            return False
    return True


# Sizes that a few integers of the inputs determine, such as the number of keys in a cache.
#
#     lv = R.maximum(total, R.const([24]))                    total: int64[1], an input
#     lv1 = R.tensor_to_shape(lv)
#     lv2: R.Shape([found_1]) = R.match_cast(lv1, R.Shape([found_1]))
#
# Computing such a size takes next to no time, so it may be computed twice.


MOST_ELEMENTS = 64  # of a tensor from which sizes are computed

_UNSURE = ("relax.call_packed", "relax.call_dps_packed", "relax.call_pure_packed")


class DeterminedSizes:
    """The sizes in one function that depend on data, and the bindings that determine them.

    Parameters
    ----------
    function : relax.Function
        In A-normal form.
    """

    def __init__(self, function: relax.Function) -> None:
        self._params = {*function.params}
        self._known = {
            v for param in function.params for v in analysis.definable_tir_vars_in_type(param.ty)
        }
        self._bindings = graph.bindings_of(function)
        self._places: dict[relax.Var, int] = {}  # positions that define values and sizes
        for place, binding in enumerate(self._bindings):
            for var in (binding.var, *_defined(binding)):
                self._places.setdefault(var, place)
        self._found: dict[int, frozenset[int] | None] = {}

    def are_determined(self, sizes: Iterable[relax.Var]) -> bool:
        """Whether the inputs' shapes, or a few integers in the inputs, determine all sizes."""
        return self._determining(sizes) is not None

    def bindings(self, sizes: Iterable[relax.Var]) -> list[graph.AnyBinding]:
        """The bindings that determine these sizes, in order."""
        return [self._bindings[place] for place in sorted(self._determining(sizes) or ())]

    def _determining(self, needed: Iterable[relax.Var]) -> frozenset[int] | None:
        """Positions of the bindings that compute some values and sizes; None if that is costly."""
        found: frozenset[int] = frozenset()
        for var in needed:
            if var in self._known or (var in self._params and _is_small(var, vectors=True)):
                continue
            place = self._places.get(var)
            more = None if place is None else self._before(place)
            if more is None:
                return None
            found |= more
        return found

    def _before(self, place: int) -> frozenset[int] | None:
        """Positions of a binding and of the bindings it needs; None if computing them is costly."""
        if place not in self._found:
            binding = self._bindings[place]
            is_little = _is_small(binding.var) and _is_plain(binding.value)
            before = self._determining(_used(binding)) if is_little else None
            self._found[place] = None if before is None else before | {place}
        return self._found[place]


def _is_small(var: relax.Var, vectors: bool = False) -> bool:
    """Whether a value is a shape or a few integers; or, with `vectors`, an integer vector."""
    if isinstance(var.ty, relax.ShapeType):
        return True
    if not isinstance(var.ty, relax.TensorType) or "int" not in str(var.ty.dtype):
        return False
    tensor = graph.static_tensor(var)
    return (vectors and var.ty.ndim == 1) or (tensor is not None and tensor.size <= MOST_ELEMENTS)


def _is_plain(value: relax.Expr) -> bool:
    """Whether an expression has one value whenever it is computed."""
    if isinstance(value, relax.Call):
        return graph.op_name(value).startswith("relax.") and graph.op_name(value) not in _UNSURE
    return isinstance(value, relax.ShapeExpr | relax.Var)


def _defined(binding: graph.AnyBinding) -> set[relax.Var]:
    """The sizes that a binding defines, or compares if they are already defined."""
    if not isinstance(binding, relax.MatchCast):
        return set()
    return {*analysis.definable_tir_vars_in_type(binding.ty)}


def _used(binding: graph.AnyBinding) -> set[relax.Var]:
    """The values and sizes that a binding needs."""
    found = {*analysis.tir_vars_in_type(binding.var.ty)} - _defined(binding)
    value = binding.value
    for part in value.args if isinstance(value, relax.Call) else [value]:
        if isinstance(part, relax.Var):
            found.add(part)
        elif not isinstance(part, ir.GlobalVar | ir.GenericConst):
            tvm_ffi.structural_walk(part, (relax.Var, found.add))
    return found

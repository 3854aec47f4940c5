"""Entries of a program besides `main`: outputs into given tensors, weights, guards."""

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

    It takes those outputs that a kernel writes whose sizes inputs tell: their shapes, or a few
    integers in them (`ToldSizes`). A result in another shape is written where the output lies.
    Where `main` finds such a size, `main_into` checks that of the
    output. `main_shapes` tells the shapes of just these outputs. The caller sees to it that no
    tensor overlaps another, but where a kernel may write a result over an argument (`IN_PLACE`)
    that is an input, and that nothing else reads. The attribute `INTO_OUTPUTS` has for each output:
    its number, that of such an input or -1, whether it may have any alignment, and whether it may
    have room for more rows.

    It comes when kernels are called by `call_tir`, and all else is a view.
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
    shapes = _shapes(mod, copy_with_new_vars(mod[MAIN]))  # a function has symbols of its own
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
            # A view, and no copy, in a dataflow block only as a variable of its own.
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
    """What `INTO_OUTPUTS` says of an output."""
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
    """The shapes of the outputs that kernels write, from the inputs."""
    types = [each.ty for each in written_outputs(mod, main)]
    shapes = relax.Tuple([ty.shape for ty in types if ty.shape is not None])
    found = ToldSizes(main).bindings(var for ty in types for var in analysis.tir_vars_in_type(ty))
    blocks = [relax.DataflowBlock(found)] if found else []
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, shapes))
    return relax.Function(main.params, body, body.ty, is_pure=True)


LEAST_BYTES = 1 << 14  # a few pages: less is not worth placing


@named_pass
def weights_entry(mod: IRModule) -> IRModule:
    """Adds an entry that hands out the large constants of a model: whoever loads it may place them.

    Before

        def main(x): ... lv = R.call_tir(kernel, (x, packed), ...) ...

    After, in addition

        def tvm_hybrid_weights():
            gv = (packed, ...)
            return gv

    It comes when constants are as kernels read them.
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
    """A module with an entry that takes nothing; BlockBuilder would hash the module for it."""
    blocks = [relax.BindingBlock(bindings)] if bindings else []
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, result))
    added = copy_module(mod)
    added[name] = relax.Function([], body, body.ty, is_pure=True).with_attr("global_symbol", name)
    return added


RELEASE_LEAST_BYTES = 1 << 17  # of all results: what is below stays in L2 either way
_SAMPLE = 256  # of a dynamic dimension


@named_pass
def release_entry(mod: IRModule) -> IRModule:
    """Adds an entry that lets go of the last results, to programs whose results are large.

    Before

        def main(x): ...

    After, in addition

        def tvm_hybrid_release():
            return ()

    TVM's virtual machine keeps what the last function returned until the next one has ended. So
    runs that follow each other write to two memories in turns, which need twice as much cache.
    After a call of this entry the next run writes where the last one did, if its caller has dropped
    the results.

    It comes before memory is planned.
    """

    if MAIN not in mod or RELEASE_ENTRY in mod:
        return mod
    result = mod[MAIN].ret_ty
    fields = result.fields if isinstance(result, relax.TupleType) else [result]
    if sum(map(_bytes, fields)) < RELEASE_LEAST_BYTES:
        return mod
    return _with_entry(mod, RELEASE_ENTRY, [], relax.Tuple([]))


def _bytes(field: ir.Type) -> int:
    """Size of a result; with a sample in place of dimensions that are not known."""
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

    A function that passes shall take for pure whatever it calls (`relax.force_pure`) stays pure.
    The function raises an error where code of the module cannot run. TVM's virtual machine looks
    for it among what its executable imports.

    The pass, for a guard of this name; entries that call it already stay as they are.
    """

    return map_functions(mod, is_relax, lambda function: _guarded(function, guard))


def _guarded(function: relax.Function, guard: str) -> relax.Function:
    attrs = function.attrs
    if not attrs or "global_symbol" not in attrs or "Codegen" in attrs:
        return function  # nobody calls it from outside, or a code generator compiles it
    if any(graph.packed_name(binding.value) == guard for binding in graph.bindings_of(function)):
        return function
    nothing = relax.TupleType([])
    call = relax.Call(relax.ExternFunc(guard), [], None, [nothing], ret_ty=nothing)
    first = relax.BindingBlock([relax.VarBinding(relax.Var("checked", nothing), call)])
    whole = relax.SeqExpr([first, *function.body.blocks], function.body.body)
    body = relax.BlockBuilder().normalize(whole)
    forced = bool(function.attrs.get("relax.force_pure"))  # what it calls does not count
    return relax.Function(function.params, body, function.ret_ty, forced, function.attrs)


# Which outputs of a module kernels write, and who reads them besides the caller.
#
# A size of such an output is told by the inputs: by their shapes, or by a few integers in them.
# Where a caller gives the tensor, it may have room for more rows if kernels that read it take such
# ones.


CALL_TIR = ir.Op.get("relax.call_tir")


@dataclass(frozen=True)
class Written:
    """An output that a kernel writes.

    Attributes
    ----------
    number : int
        Of the output.
    var : relax.Var
        The call's result.
    result : int
        Which of the call's results it is.
    view : relax.Var or None
        The output, if it is that result in another shape.
    """

    number: int
    var: relax.Var
    result: int
    view: relax.Var | None = None

    @property
    def place(self) -> tuple[relax.Var, int]:
        """Which call makes it, and which of that call's results it is."""
        return self.var, self.result

    @property
    def ty(self) -> relax.TensorType:
        """The output's type."""
        return types_of(self.var)[self.result] if self.view is None else types_of(self.view)[0]


def types_of(value: relax.Expr) -> list[relax.TensorType]:
    """Of the results of a kernel's call."""
    types = list(value.ty.fields) if isinstance(value.ty, relax.TupleType) else [value.ty]
    return [ty for ty in types if isinstance(ty, relax.TensorType)]


def written_outputs(mod: IRModule, main: relax.Function) -> list[Written]:
    """The outputs that kernels of a module write, of sizes that the inputs tell."""
    bindings = [each for each in graph.bindings_of(main) if isinstance(each, relax.VarBinding)]
    values = {each.var: each.value for each in bindings}
    shapes = {var for param in main.params for var in analysis.definable_tir_vars_in_type(param.ty)}
    told = ToldSizes(main)
    found = [
        written
        for number, field in enumerate(_outputs(main, values))
        if (written := _written(mod, field, values, number)) is not None
        and isinstance(written.ty.shape, relax.ShapeExpr)
        and told.are_told(used := analysis.tir_vars_in_type(written.ty))
        and {*used} <= shapes | {*analysis.definable_tir_vars_in_type(written.ty)}
    ]
    places = [each.place for each in found]
    plain = [each.place for each in found if each.view is None]
    once = [x for x in found if (plain if x.view is None else places).count(x.place) == 1]
    # A kernel takes its results behind one another, those that are given before those that are not.
    taken = {each.place for each in once}
    return [x for x in once if all((x.var, before) in taken for before in range(x.result))]


def _outputs(main: relax.Function, values: dict[relax.Var, relax.Expr]) -> list[relax.Expr]:
    """What a function returns, one by one."""
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
    """The call that a value is a result of; None for anything else."""
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
    """Whether all that reads an output takes tensors with room for more rows."""
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
                ty = kernel.params[place].ty  # with strides: heads may lie apart
                has_strides = isinstance(ty, BufferType) and bool(ty.strides)
                if argument in names and not has_strides:
                    return False
        elif not isinstance(value, relax.Tuple) and names & {*analysis.used_vars(value)}:
            return False
    return True


# Sizes that a few integers of the inputs tell, such as how many keys a cache shall have.
#
#     lv = R.maximum(total, R.const([24]))                    total: int64[1], an input
#     lv1 = R.tensor_to_shape(lv)
#     lv2: R.Shape([found_1]) = R.match_cast(lv1, R.Shape([found_1]))
#
# It takes next to no time to find such a size, so it may be found twice.


MOST_ELEMENTS = 64  # of a tensor that sizes are computed with

_UNSURE = ("relax.call_packed", "relax.call_dps_packed", "relax.call_pure_packed")


class ToldSizes:
    """The sizes that data decide in one function, and what tells them.

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
        self._places: dict[relax.Var, int] = {}  # of values and of sizes
        for place, binding in enumerate(self._bindings):
            for var in (binding.var, *_defined(binding)):
                self._places.setdefault(var, place)
        self._found: dict[int, frozenset[int] | None] = {}

    def are_told(self, sizes: Iterable[relax.Var]) -> bool:
        """Whether the inputs' shapes, or a few integers in them, tell all these sizes."""
        return self._telling(sizes) is not None

    def bindings(self, sizes: Iterable[relax.Var]) -> list[graph.AnyBinding]:
        """The bindings that tell these sizes, in order."""
        return [self._bindings[place] for place in sorted(self._telling(sizes) or ())]

    def _telling(self, needed: Iterable[relax.Var]) -> frozenset[int] | None:
        """The places of the bindings behind values and sizes; None if they do much."""
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
        """The places of a binding and of those that it needs; None as of `_telling`."""
        if place not in self._found:
            binding = self._bindings[place]
            is_little = _is_small(binding.var) and _is_plain(binding.value)
            before = self._telling(_used(binding)) if is_little else None
            self._found[place] = None if before is None else before | {place}
        return self._found[place]


def _is_small(var: relax.Var, vectors: bool = False) -> bool:
    """Whether a value is a shape or a few integers; or a vector of any length, if these count."""
    if isinstance(var.ty, relax.ShapeType):
        return True
    if not isinstance(var.ty, relax.TensorType) or "int" not in str(var.ty.dtype):
        return False
    tensor = graph.static_tensor(var)
    return (vectors and var.ty.ndim == 1) or (tensor is not None and tensor.size <= MOST_ELEMENTS)


def _is_plain(value: relax.Expr) -> bool:
    """Whether an expression gives the same whenever it is computed."""
    if isinstance(value, relax.Call):
        return graph.op_name(value).startswith("relax.") and graph.op_name(value) not in _UNSURE
    return isinstance(value, relax.ShapeExpr | relax.Var)


def _defined(binding: graph.AnyBinding) -> set[relax.Var]:
    """The sizes that a binding gives their numbers, or compares if they have some."""
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

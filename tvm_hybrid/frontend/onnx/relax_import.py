"""Emits Relax for a typed graph, node by node, and names the node that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper
from tvm import IRModule, relax
from tvm.ir import GlobalVar

from microkernels.base.errors import ModelError, UnsupportedOperatorError
from microkernels.base.tvm_compat.relax import end_block
from relay_passes.ir.constants import array_of
from relay_passes.ir.rewrite import with_names

from ...explain.origins import numbers_in, variable_name
from ..expressions import (
    NODE_NUMBER,
    OUTPUT_COUNT,
    Expr,
    Inputs,
    literal,
    static_shape_of,
    writing_to,
)
from . import ops  # noqa: F401  registers the converters
from .data_sized.open_operators import check_result, prepared
from .data_sized.sizes import dims_of
from .graph.freeze_shapes import OpenSizes, RelatedSizesError, current_sizes, keeping
from .graph.graph import Graph, describe
from .loops import Loop, OwnSizes, is_repeat, repeat
from .operators import operator_of, why_unsupported
from .ops.elementwise import half_to_widen, widen
from .reader.check_model import with_checked_indices
from .reader.left_data import LARGE_BYTES

Shapes = dict[str, list[Expr]]  # of inputs, by name


class _Importer:
    """Walks over a typed graph once; every node becomes Relax expressions of checked types."""

    def __init__(self, graph: Graph, library: relax.BlockBuilder, shapes: Shapes) -> None:
        self.bb = relax.BlockBuilder()
        self.made: list[Made] = []
        self._graph = graph
        self._library = library
        self._shapes = shapes
        self._values: dict[str, relax.Expr] = {}

    def function(self) -> IRModule:
        """The module of the graph's function `main`."""
        graph, values = self._graph, self._values
        self._add_constants()
        inputs = [item.name for item in graph.inputs if item.name not in values]
        names: set[str] = set()
        params: list[relax.Var] = []
        for name in inputs:
            shape = self._shapes.get(name, _input_shape(graph, name))
            kind = str(helper.tensor_dtype_to_np_dtype(graph.elem_type(name)))
            params.append(relax.Var(_plain(name, names), relax.TensorType(list(shape), kind)))
            values[name] = params[-1]
        with writing_to(self.bb), self.bb.function("main", params=params):
            with self.bb.dataflow():
                for number, node in enumerate(graph.nodes):
                    self._add(number, node)
                results = [values[name] for name in graph.outputs]
                result = self.bb.emit_output(
                    results[0] if len(results) == 1 else relax.Tuple(results)
                )
            self.bb.emit_func_output(result)
        mod = self.bb.get()
        mod["main"] = mod["main"].with_attrs({"num_input": len(params)})
        return mod

    def _add_constants(self) -> None:
        # An array needs no way through a TensorProto and back.
        for name, array in self._graph.constants.items():
            self._values[name] = value = literal(array)
            if array.nbytes >= LARGE_BYTES:  # one copy is enough
                self._graph.constants[name] = array_of(value.value, array.dtype)

    def _add(self, number: int, node: onnx.NodeProto) -> None:
        """Converts a node and keeps its results by their names.

        Raises
        ------
        UnsupportedOperatorError
            If the converter refuses this form of the operator.
        """
        names = list(node.input)
        while names and not names[-1]:
            names.pop()
        inputs = Inputs(self._values[name] if name else None for name in names)
        outputs = list(node.output)
        while len(outputs) > 1 and not outputs[-1]:
            outputs.pop()
        attrs: dict[str, Any] = {
            item.name: helper.get_attribute_value(item) for item in node.attribute
        }
        attrs |= {NODE_NUMBER: number, OUTPUT_COUNT: len(outputs)}
        try:
            result = self._converted(node, inputs, attrs)
        except (UnsupportedOperatorError, RelatedSizesError):
            raise  # of a node in a loop's body, or found for the whole import
        except Exception as error:  # Python and C++ errors of any kind
            given = ", ".join(f"{name!r} {self._graph.shape(name)}" for name in node.input if name)
            raise UnsupportedOperatorError(
                f"{describe(node)}: the importer refuses this form of it (inputs {given}): "
                f"{_first_line(error)}"
            ) from error
        fields = list(result) if isinstance(result, relax.Tuple) else [result]
        if len(outputs) > len(fields):
            raise ModelError(f"{describe(node)} has {len(outputs)} outputs and makes {len(fields)}")
        self._values.update(zip(outputs, fields, strict=False))

    def _converted(self, node: onnx.NodeProto, inputs: Inputs, attrs: dict[str, Any]) -> relax.Expr:
        if self._graph.check_indices:
            inputs = with_checked_indices(node, inputs, attrs)
        half = half_to_widen(node.op_type, inputs)
        if half is not None:
            inputs = widen(inputs, half)
        known = operator_of(node)
        if known is None:
            result = self._repeat(inputs, attrs)
        else:
            inputs = prepared(node.op_type, inputs, attrs)
            result = self.bb.normalize(known.convert(inputs, attrs))
            check_result(inputs, result, not known.static)
        if half is not None:
            result = self._rounded(result, half)
        self._check_types(node, result)
        result = self._named(node, result)
        if isinstance(result, relax.Tuple) or not isinstance(result.ty, relax.TupleType):
            return result
        count = len(result.ty.fields)
        return relax.Tuple([self.bb.emit(relax.TupleGetItem(result, i)) for i in range(count)])

    def _repeat(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> relax.Expr:
        graph = self._graph.bodies[attrs["body"].decode()]
        # Of the sizes that the values have here, which may be open.
        own = OwnSizes(inputs[2:])
        given = zip((item.name for item in graph.inputs[1:]), own.values, strict=True)
        shapes = {name: list(dims_of(value)) for name, value in given}
        body = _function(graph, self._library, shapes)
        steps = None if attrs["steps"] < 0 else attrs["steps"]
        private = body.without_attr("global_symbol")
        loop = Loop(private, attrs["states"], steps, bool(attrs["ends_early"]))
        return own.undone(repeat(self._library, loop, [*inputs[:2], *own.values]))

    def _rounded(self, value: relax.Expr, half: str) -> relax.Expr:
        """The (first) result in a type of 16 bits; statistics beside it stay as they are."""
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._rounded(value[0], half), *list(value)[1:]])
        return self.bb.normalize(relax.op.astype(value, half))

    def _named(self, node: onnx.NodeProto, result: relax.Expr) -> relax.Expr:
        """A result in variables that tell the node of the model."""
        origins = [self._graph.origins[name] for name in node.output if name in self._graph.origins]
        if not origins:
            return result
        name = variable_name(origins[0], node.op_type)
        if isinstance(result, relax.Call):
            result = self.bb.emit(result, name)
        elif isinstance(result, relax.Tuple):
            fields = [
                self.bb.emit(each, name) if isinstance(each, relax.Call) else each
                for each in result.fields
            ]
            result = relax.Tuple(fields)
        self.made += ((name, each) for each in getattr(result, "fields", [result]))
        return result

    def _check_types(self, node: onnx.NodeProto, result: relax.Expr) -> None:
        """Holds what a converter made against what ONNX says it is."""
        made = result.ty
        types = list(made.fields) if isinstance(made, relax.TupleType) else [made]
        for name, found in zip(node.output, types, strict=False):
            expected = self._graph.shape(name) if name else None
            if expected is None or not isinstance(found, relax.TensorType):
                continue
            shape = static_shape_of(found)
            dtype = str(helper.tensor_dtype_to_np_dtype(self._graph.elem_type(name)))
            if shape != expected or str(found.dtype) != dtype:
                raise TypeError(
                    f"it makes {found.dtype} {shape} where ONNX defines {dtype} {expected}"
                )


def _input_shape(graph: Graph, name: str) -> Sequence[Any]:
    sizes = current_sizes()
    if sizes is not None and name in sizes.inputs and not graph.is_body:
        return sizes.shape(name)
    return graph.shape(name) or ()


def to_relax(graph: Graph, sizes: OpenSizes | None = None) -> IRModule:
    """The Relax module of a graph: its function main, and those that main calls.

    Parameters
    ----------
    sizes
        The open sizes of the graph's inputs. What the module takes for granted of them is added.

    Raises
    ------
    UnsupportedOperatorError
        An operator has no converter, or its converter refuses a node.
    ModelError
        A node makes fewer results than it has outputs.
    """
    sizes = sizes or OpenSizes()
    while True:
        library = relax.BlockBuilder()
        try:
            with keeping(sizes):
                library.add_func(_function(graph, library), "main")
        except RelatedSizesError as found:
            sizes.relate(found.name, found.text)
            continue
        return library.get()


def _function(
    graph: Graph, library: relax.BlockBuilder, shapes: Shapes | None = None
) -> relax.Function:
    """The Relax function of a graph, its inputs of some shapes; what it calls goes into the
    library."""
    mod = _import(graph, library, shapes or {})
    names = {
        name: library.add_func(function, name.name_hint)
        for name, function in mod.functions.items()
        if name.name_hint != "main"
    }
    return _Renaming(names).visit_expr(mod["main"]) if names else mod["main"]


@relax.expr_functor.mutator
class _Renaming(relax.PyExprMutator):
    """Puts other global names in the place of some."""

    def __init__(self, names: dict[GlobalVar, GlobalVar]) -> None:
        super().__init__()
        self._names = names

    def visit_global_var_(self, op: GlobalVar) -> GlobalVar:
        return self._names.get(op, op)


def _import(graph: Graph, library: relax.BlockBuilder, shapes: Shapes) -> IRModule:
    for node in graph.nodes:
        if operator_of(node) is None and not is_repeat(node):
            raise UnsupportedOperatorError(
                f"{describe(node)}: {why_unsupported(node, graph.opset)}"
            )
    importer = _Importer(graph, library, shapes)
    try:
        mod = importer.function()
    except (ModelError, RelatedSizesError):
        end_block(importer.bb)
        raise
    mod["main"] = name_variables(mod["main"], importer.made)
    return mod


def _plain(name: str, taken: set[str]) -> str:
    """A name for a variable that no other one has, without dots."""
    plain = name.replace(".", "_") or "empty_"
    plain = plain if plain[0].isalpha() or plain[0] == "_" else f"input_{plain}"
    found, number = plain, 0
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    taken.add(found)
    return found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


Made = tuple[str, relax.Expr]  # a name, and the last variable of what a node became


def name_variables(function: relax.Function, made: Sequence[Made]) -> relax.Function:
    """Names the variables inside of what a node became after the node.

    Before

        lv = R.less(indices, 0)
        lv1 = R.add(indices, 30522)
        lv2 = R.where(lv, lv1, indices)
        gather_n1_ = R.take(table, lv2)

    After

        gather_n1_ = R.less(indices, 0)
        gather_n1_ = R.add(indices, 30522)
        gather_n1_ = R.where(gather_n1_, gather_n1_, indices)      # each a variable of its own
        gather_n1_ = R.take(table, gather_n1_)

    The function with other variables for those whose names tell no node.

    Parameters
    ----------
    function : relax.Function
    made : sequence of Made
        In the order in which nodes were converted.
    """
    bindings = [each for block in function.body.blocks for each in block.bindings[:]]
    place = {each.var: position for position, each in enumerate(bindings)}
    ends = [(place[var], name) for name, var in made if isinstance(var, relax.Var) and var in place]
    names: dict[relax.Var, str] = {}
    next_end = 0
    for position, binding in enumerate(bindings):
        while next_end < len(ends) and ends[next_end][0] < position:
            next_end += 1
        if next_end < len(ends) and not numbers_in([str(binding.var.name)]):
            names[binding.var] = ends[next_end][1]
    return with_names(function, names)

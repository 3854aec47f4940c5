"""Hands a typed graph to TVM's ONNX importer and names the node that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper
from tvm import IRModule, relax
from tvm.ir import GlobalVar

from microkernels.base.errors import ModelError, UnsupportedOperatorError
from microkernels.base.tvm_compat.onnx_importer import OnnxImporter, node_inputs
from relay_passes.ir.constants import array_of
from relay_passes.ir.rewrite import with_names

from ...explain.origins import numbers_in, variable_name
from .data_sized import DATA_SIZED_CONVERTERS
from .data_sized.open_operators import OPEN_OPERATORS, check_result, prepared
from .data_sized.sizes import dims_of
from .graph.expressions import Expr, literal, static_shape_of
from .graph.freeze_shapes import OpenSizes, RelatedSizesError, current_sizes, keeping
from .graph.graph import Graph, describe
from .loops import Loop, OwnSizes, repeat
from .ops.converters import CONVERTERS, has_converter, why_unsupported
from .ops.elementwise import half_to_widen, widen
from .reader.check_model import with_checked_indices
from .reader.left_data import LARGE_BYTES

Shapes = dict[str, list[Expr]]  # of inputs, by name


class _RefusedError(BaseException):
    """Carries a converter's error past the importer, which prints every Exception."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.error = error


class _Importer(OnnxImporter):
    """TVM's importer with our converters, and with types that are checked."""

    def __init__(
        self,
        graph: Graph,
        nodes: dict[str, onnx.NodeProto],
        library: relax.BlockBuilder,
        shapes: Shapes,
    ) -> None:
        names = [item.name for item in graph.inputs]
        super().__init__({name: shapes.get(name, _input_shape(graph, name)) for name in names})
        self._graph = graph
        self._sources = nodes
        self._library = library
        self.made: list[Made] = []

    def constants(self) -> dict[str, relax.Expr]:
        # An array needs no way through a TensorProto and back.
        found: dict[str, relax.Expr] = {}
        for name, array in self._graph.constants.items():
            found[name] = value = literal(array)
            if array.nbytes >= LARGE_BYTES:  # one copy is enough
                self._graph.constants[name] = array_of(value.value, array.dtype)
        return found

    def convert(
        self, node: str, op_type: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        try:
            if self._graph.check_indices:
                source = self._sources[node]
                inputs = node_inputs(with_checked_indices(self.bb, source, inputs, attrs))
            half = half_to_widen(op_type, inputs)
            if half is not None:
                inputs = node_inputs(widen(self.bb, inputs, half))
            result = self._convert(op_type, inputs, attrs, opset)
            if half is not None:
                result = self._rounded(result, half)
            self._check_types(self._sources[node], result)
            return self._named(self._sources[node], result)
        except Exception as error:
            raise _RefusedError(node, error) from error

    def _convert(
        self, op_type: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        if op_type == "Repeat":
            return self._repeat(inputs, attrs)
        inputs = node_inputs(prepared(self.bb, op_type, inputs, attrs))
        own = CONVERTERS[op_type](self.bb, inputs, attrs) if op_type in CONVERTERS else None
        is_right = op_type in OPEN_OPERATORS
        is_right = is_right or (own is not None and op_type in DATA_SIZED_CONVERTERS)
        if own is None:
            own = self.convert_by_tvm(op_type, inputs, attrs, opset)
        result = self.bb.normalize(own)
        check_result(self.bb, inputs, result, is_right)
        return result

    def _repeat(self, inputs: Sequence[Any], attrs: dict[str, Any]) -> relax.Expr:
        graph = self._graph.bodies[attrs["body"].decode()]
        # Of the sizes that the values have here, which may be open.
        own = OwnSizes(self.bb, inputs[2:])
        given = zip((item.name for item in graph.inputs[1:]), own.values, strict=True)
        shapes = {name: list(dims_of(value)) for name, value in given}
        body = _function(graph, self._library, shapes)
        steps = None if attrs["steps"] < 0 else attrs["steps"]
        private = body.without_attr("global_symbol")
        loop = Loop(private, attrs["states"], steps, bool(attrs["ends_early"]))
        return own.undone(repeat(self._library, self.bb, loop, [*inputs[:2], *own.values]))

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
        The importer fails in another way.
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
        if not has_converter(node):
            raise UnsupportedOperatorError(
                f"{describe(node)}: {why_unsupported(node, graph.opset)}"
            )
    nodes = {f"{index}": node for index, node in enumerate(graph.nodes)}
    proto = onnx.GraphProto(name=graph.name or "main")
    for item in graph.inputs:
        proto.input.append(helper.make_value_info(item.name, graph.types[item.name]))
    for name in graph.outputs:
        proto.output.append(onnx.ValueInfoProto(name=name))
    for key, node in nodes.items():
        copy = proto.node.add()
        copy.CopyFrom(node)
        copy.name = key
        _trim(copy)
    importer = _Importer(graph, nodes, library, shapes)
    try:
        mod = importer.from_onnx(proto, graph.opset)
        mod["main"] = name_variables(mod["main"], importer.made)
        return mod
    except _RefusedError as refusal:
        importer.close()
        # Of a node in a loop's body, or what is found for the whole import.
        if isinstance(refusal.error, UnsupportedOperatorError | RelatedSizesError):
            raise refusal.error from refusal
        node = nodes[refusal.name]
        given = ", ".join(f"{name!r} {graph.shape(name)}" for name in node.input if name)
        raise UnsupportedOperatorError(
            f"{describe(node)}: the importer refuses this form of it (inputs {given}): "
            f"{_first_line(refusal.error)}"
        ) from refusal.error
    except Exception as error:  # Python and C++ errors of any kind
        importer.close()
        raise ModelError(f"TVM's importer fails: {_first_line(error)}") from error


def _trim(node: onnx.NodeProto) -> None:
    """Drops absent trailing inputs and outputs, which converters would count."""
    while node.input and not node.input[-1]:
        node.input.pop()
    while len(node.output) > 1 and not node.output[-1]:
        node.output.pop()


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

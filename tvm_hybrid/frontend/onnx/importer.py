"""One walk over a graph: constant nodes are folded, and all others become Relax.

    Shape(x: [3, 32]) -> Gather -> Concat -> Reshape(y, .)        ->    R.reshape(y, [96, 384])
    FusedMatMul(a, b, transB=1, alpha=0.125)                      ->    Transpose, MatMul, Mul
    Identity, Dropout, Cast to the same type, Expand to the same shape, If(true)  ->  nothing
    Relu(past: [1, 4, 0, 16])                             ->    a constant without elements

Nodes are taken from a queue in topological order. A rewrite puts its nodes back at the front, so
that they are typed, folded and converted like the model's. ONNX's inference for single nodes gives
the declared type; the Relax expression of a value gives the real type, and more of its sizes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import IRModule, relax, tirx

from microkernels.base import errors
from microkernels.base.errors import ModelError, ShapeError, UnsupportedOperatorError
from microkernels.base.tvm_compat.relax import end_block
from relay_passes.ir.constants import array_of
from relay_passes.ir.functions import with_renamed
from relay_passes.ir.rewrite import with_names

from ...explain.origins import numbers_in, variable_name
from .. import expressions
from ..expressions import Attrs, Expr, Inputs, emit, literal, static_shape_of, writing_to
from . import ops  # noqa: F401  registers the converters
from .evaluate import evaluate
from .graph import node_facts, parameters
from .graph.freeze_shapes import DynamicSizes, RelatedSizesError, current_sizes, keeping
from .graph.graph import Graph, describe, dtype_named, is_standard
from .graph.kernels import fields
from .graph.node_builder import attributes_of, constant_value
from .graph.requests import with_checked_indices
from .loops import Loop, is_repeat, loop_of, repeat
from .operators import convert, operator_of, why_unsupported
from .reader.check_model import check_parameters
from .reader.old_forms import renewed
from .reader.wire_format import LARGE_BYTES
from .rewrites import nodes, sequences  # noqa: F401  registers the rewrites, loop.py's included
from .rewrites.table import rewrite

MAX_NODES = 1_000_000
# Operators whose result has another size in ONNX Runtime than ONNX infers: no window of a pool
# begins in the padding after the image, and an extent times a scale is computed in float32.
#
#     MaxPool(x: [1, 1, 7], kernel_shape=[2], strides=[2], pads=[1, 1], ceil_mode=1)  ->  [1, 1, 4]
#     Resize(x: [1, 10], scales=[1, 1.3])  ->  [1, 13]
#     STFT(x: [1, 400, 1], 16, window: [64])  ->  [1, 22, 33, 2]
_SIZED_OTHERWISE = {"AveragePool", "LpPool", "MaxPool", "Resize", "STFT", "Upsample"}

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm")  # their third input is a bias

Made = tuple[str, relax.Expr]  # a name, and the last variable of a converted node


def to_relax(graph: Graph, sizes: DynamicSizes | None = None) -> tuple[IRModule, Graph]:
    """Converts a graph to a Relax module: its function main, and the functions that main calls.

    Parameters
    ----------
    graph
        It is not changed.
    sizes
        The dynamic sizes of the graph's inputs. Assumptions of the module about them are added.

    Returns
    -------
    tuple of IRModule and Graph
        The graph has the converted nodes, the constants and the types.

    Raises
    ------
    ShapeError
        The types or shapes of a node's inputs do not fit.
    UnsupportedOperatorError
        An operator has no converter, or its converter refuses a node.
    InputValueError
        A parameter of an operator, such as axes, comes from inputs of the graph.
    ModelError
        A node does not fit its operator's schema.
    """
    sizes = sizes or DynamicSizes()
    while True:
        library, walked = relax.BlockBuilder(), graph.copy()
        try:
            with keeping(sizes):
                library.add_func(_Importer(walked, library).function(), "main")
        except RelatedSizesError as found:
            sizes.relate(found.name, found.text)
            continue
        return library.get(), walked


class _Importer:
    """The walk over one graph: the model's, or the body of a loop.

    Parameters
    ----------
    graph
        It gets the converted nodes, the constants and the types.
    library
        Receives the functions that the graph's function calls.
    shapes
        Input name -> shape.
    """

    def __init__(
        self, graph: Graph, library: relax.BlockBuilder, shapes: dict[str, list[Expr]] | None = None
    ) -> None:
        self.graph = graph
        self.queue = deque(graph.nodes)
        self.done: list[onnx.NodeProto] = []
        self.aliases: dict[str, str] = {}
        self._bb = relax.BlockBuilder()
        self._library = library
        self._shapes = shapes or {}
        self._values: dict[str, relax.Expr] = {}
        self._made: list[Made] = []
        self._loops: dict[str, Loop] = {}  # by the name of the first output
        products = (node for node in graph.nodes if node.op_type in _PRODUCTS and is_standard(node))
        self._biases = {name for node in products for name in node.input[2:3]}
        self._types = node_facts.Inference(graph)

    def function(self) -> relax.Function:
        """Converts the graph to a function; functions that it calls are added to the library."""
        graph, names, sizes = self.graph, set[str](), current_sizes()
        params: list[relax.Var] = []
        for item in graph.inputs:
            if item.name in graph.constants:
                continue
            shape: Sequence[Any] = self._shapes.get(item.name) or graph.shape(item.name) or ()
            if item.name in sizes.inputs and not graph.is_body:
                shape = sizes.shape(item.name)
            kind = dtype_named(graph.elem_type(item.name))
            params.append(relax.Var(_plain(item.name, names), relax.TensorType(list(shape), kind)))
            self._values[item.name] = params[-1]
        try:
            with writing_to(self._bb), self._bb.function("main", params=params):
                with self._bb.dataflow():
                    self._walk()
                    results = [self._value(name) for name in graph.outputs]
                    result = results[0] if len(results) == 1 else relax.Tuple(results)
                    result = self._bb.emit_output(result)
                self._bb.emit_func_output(result)
        except (ModelError, RelatedSizesError):
            end_block(self._bb)
            raise
        mod = self._bb.get()
        function = name_variables(mod["main"], self._made)
        function = function.with_attr("num_input", len(params))
        others: dict[Expr, Expr] = {
            name: self._library.add_func(made, name.name_hint)
            for name, made in mod.functions.items()
            if name.name_hint != "main"
        }
        return with_renamed(function, others) if others else function

    def _walk(self) -> None:
        graph = self.graph
        node_facts.drop_unused_outputs(graph)
        graph.makers = {name: node for node in graph.nodes for name in node.output if name}
        parameters.note_inputs(graph)
        for item in graph.inputs:
            if graph.shape(item.name) == (0,):
                # An empty vector, such as axes, can only have one value: it becomes a constant.
                self.aliases[item.name] = name = graph.fresh(item.name)
                dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(item.name))
                graph.add_constant(name, np.empty(0, dtype))
                if item.name in graph.narrow:
                    graph.narrow[name] = graph.narrow[item.name]
        visited = 0
        while self.queue:
            visited += 1
            if visited > MAX_NODES:
                raise ModelError(f"the graph unfolds to more than {MAX_NODES} nodes")
            node = self.queue.popleft()
            try:
                self._visit(node)
            except errors.InputValueError:
                raise
            except ModelError:
                # A branch chosen by inputs may not fit the given shapes: then ask for their values.
                for prefix, condition, source in graph.choices:
                    if node.name.startswith(prefix):
                        parameters.require_value(source, condition, graph)
                raise
        graph.nodes = self.done
        if graph.sequences:  # the function returns the values in a sequence
            elements = (graph.sequences.get(name, [name]) or [] for name in graph.outputs)
            graph.outputs = [self.aliases.get(each, each) for found in elements for each in found]

    def _visit(self, node: onnx.NodeProto) -> None:
        graph = self.graph
        for position, name in enumerate(node.input):
            if name in self.aliases:
                node.input[position] = self.aliases[name]
        found = renewed(node, graph) if graph.old_opset else None
        if found is not None:
            self._put_back(node, found)
            return
        node_facts.check_signature(node, graph.opset)
        node_facts.mark_narrow(node, graph)
        if is_standard(node) and node.op_type == "Constant":
            graph.add_constant(node.output[0], constant_value(node, graph))
            return
        for name in parameters.parameters_of(node, graph):
            parameters.require_value(describe(node), name, graph)
        check_parameters(node, graph)
        types = self._types.of_empty(node)
        values = self._types.empty_values(node, types)
        if values is None:
            replacement = rewrite(node, graph)
            if replacement is not None:
                self._put_back(node, replacement)
                return
            if is_repeat(node):
                self._loops[node.output[0]] = loop_of(node, graph, self._value, self._body)
            types = types or self._types.of(node)
            values = self._types.shape_values(node)
        if values is None:
            values = self._types.empty_values(node, types)
        if values is None:
            # An integer product adds the bias as an integer, so it is not dequantized here.
            dequantizes = node.op_type == "DequantizeLinear" and node.output[0] in self._biases
            array = graph.constants.get(node.input[0]) if dequantizes else None
            if array is None or array.dtype != np.int32:
                values = evaluate(node, graph, types)
        if values is not None:
            for name, value in zip(node.output, values, strict=True):
                if name:
                    graph.add_constant(name, value)
            return
        if node.op_type not in _SIZED_OTHERWISE:
            graph.types.update(types)
        if node_facts.is_no_op(node, graph) and node.output[0] not in graph.outputs:
            self.aliases[node.output[0]] = node.input[0]
            return
        self._convert(node)
        self.done.append(node)
        graph.makers.update(dict.fromkeys(node.output, node))
        parameters.note_node(node, graph)

    def _put_back(self, node: onnx.NodeProto, others: Sequence[onnx.NodeProto]) -> None:
        """Puts replacements of a node at the front of the queue, with the node's origin."""
        origins = self.graph.origins
        origin = next((origins[name] for name in node.output if name in origins), None)
        if origin is not None:
            for name in (name for each in others for name in each.output):
                origins.setdefault(name, origin)
        self.queue.extendleft(reversed(others))

    def _value(self, name: str) -> Any:
        """The expression of a value."""
        if name not in self._values:
            # `literal` reads the array directly, without a TensorProto.
            array = self.graph.constants[name]
            self._values[name] = value = literal(array)
            if array.nbytes >= LARGE_BYTES:  # share the copy in the expression
                self.graph.constants[name] = array_of(value.value, array.dtype)
        return self._values[name]

    def _convert(self, node: onnx.NodeProto) -> None:
        """Converts a node, and stores its results and their types by name.

        Raises
        ------
        UnsupportedOperatorError
            If its operator has no converter, or the converter refuses this form.
        """
        if operator_of(node) is None and not is_repeat(node):
            reason = why_unsupported(node, self.graph.opset)
            raise UnsupportedOperatorError(f"{describe(node)}: {reason}")
        names = list(node.input)
        while names and not names[-1]:
            names.pop()
        inputs = Inputs(self._value(name) if name else None for name in names)
        outputs = list(node.output)
        while len(outputs) > 1 and not outputs[-1]:
            outputs.pop()
        narrow = enumerate(map(self.graph.narrow.get, names))
        facts = {
            expressions.NODE_NUMBER: len(self.done),
            expressions.OPSET: self.graph.opset,
            expressions.OUTPUTS: outputs,
            expressions.NARROW_INPUTS: {place: each for place, each in narrow if each},
        }
        attrs = attributes_of(node) | facts
        try:
            result = self._converted(node, inputs, attrs)
        except (UnsupportedOperatorError, RelatedSizesError):
            raise  # about a node in a loop's body, or about the import as a whole
        except ShapeError as error:
            raise ShapeError(f"{describe(node)}: {error}") from error
        except Exception as error:  # Python and C++ errors of any kind
            given = ", ".join(f"{name!r} {self.graph.shape(name)}" for name in node.input if name)
            raise UnsupportedOperatorError(
                f"{describe(node)}: the importer refuses this form of it (inputs {given}): "
                f"{next(iter(str(error).strip().splitlines()), type(error).__name__)}"
            ) from error
        fields = list(result) if isinstance(result, relax.Tuple) else [result]
        if len(outputs) > len(fields):
            raise ModelError(f"{describe(node)} has {len(outputs)} outputs but makes {len(fields)}")
        for name, value in zip(outputs, fields, strict=False):
            self._values[name] = value
            self._note_type(name, value)

    def _converted(self, node: onnx.NodeProto, inputs: Inputs, attrs: Attrs) -> relax.Expr:
        if self.graph.check_indices:
            inputs = with_checked_indices(node, inputs, attrs)
        if is_repeat(node):
            result = repeat(self._library, self._loops[node.output[0]], *inputs[:2])
        else:
            domain = "" if is_standard(node) else node.domain
            result = convert(node.op_type, inputs, attrs, domain)
        self._check_types(node, result)
        result = self._named(node, result)
        if isinstance(result, relax.Tuple) or not isinstance(result.ty, relax.TupleType):
            return result
        return relax.Tuple(fields(result))

    def _body(self, body: Graph, shapes: dict[str, list[Expr]]) -> relax.Function:
        return _Importer(body, self._library, shapes).function()

    def _named(self, node: onnx.NodeProto, result: relax.Expr) -> relax.Expr:
        """Binds a result to variables whose names have the number of the model's node."""
        origins = [self.graph.origins[name] for name in node.output if name in self.graph.origins]
        if not origins:
            return result
        name = variable_name(origins[0], node.op_type)
        if isinstance(result, relax.Call):
            result = emit(result, name)
        elif isinstance(result, relax.Tuple):
            result = relax.Tuple(
                [emit(x, name) if isinstance(x, relax.Call) else x for x in result.fields]
            )
        self._made += ((name, each) for each in getattr(result, "fields", [result]))
        return result

    def _note_type(self, name: str, value: relax.Expr) -> None:
        """Declares the sizes of a value that Relax knows, unless its shape is static already."""
        found, graph = value.ty, self.graph
        if not name or not isinstance(found, relax.TensorType) or graph.shape(name) is not None:
            return
        dims: Sequence[int | None] | None = None
        if isinstance(found.shape, relax.ShapeExpr):
            dims = [
                int(size) if isinstance(size, tirx.IntImm) else None for size in found.shape.values
            ]
        elif found.ndim >= 0:
            dims = [None] * found.ndim
        kind = graph.elem_type(name) or helper.np_dtype_to_tensor_dtype(np.dtype(str(found.dtype)))
        graph.declare(name, kind, dims)

    def _check_types(self, node: onnx.NodeProto, result: relax.Expr) -> None:
        """Compares the types of a converter's results with those that ONNX infers."""
        made = result.ty
        types = list(made.fields) if isinstance(made, relax.TupleType) else [made]
        for name, found in zip(node.output, types, strict=False):
            expected = self.graph.shape(name) if name else None
            if expected is None or not isinstance(found, relax.TensorType):
                continue
            shape = static_shape_of(found)
            dtype = dtype_named(self.graph.elem_type(name))
            if shape != expected or str(found.dtype) != dtype:
                raise TypeError(
                    f"it makes {found.dtype} {shape} where ONNX defines {dtype} {expected}"
                )


def _plain(name: str, taken: set[str]) -> str:
    """A unique name for a variable, without dots."""
    plain = name.replace(".", "_") or "empty_"
    plain = plain if plain[0].isalpha() or plain[0] == "_" else f"input_{plain}"
    found, number = plain, 0
    while found in taken:
        number += 1
        found = f"{plain}_{number}"
    taken.add(found)
    return found


def name_variables(function: relax.Function, made: Sequence[Made]) -> relax.Function:
    """Names the variables that a node was converted to after the node.

    Before

        lv = R.less(indices, 0)
        lv1 = R.add(indices, 30522)
        lv2 = R.where(lv, lv1, indices)
        gather_n1_ = R.take(table, lv2)

    After

        gather_n1_ = R.less(indices, 0)
        gather_n1_ = R.add(indices, 30522)
        gather_n1_ = R.where(gather_n1_, gather_n1_, indices)      # three distinct variables
        gather_n1_ = R.take(table, gather_n1_)

    Parameters
    ----------
    function : relax.Function
    made : sequence of Made
        In the order of conversion.

    Returns
    -------
    relax.Function
        With new variables in place of those whose names have no node's number.
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

"""ONNX to Relax: read, check, freeze shapes, fold and rewrite, convert.

model.onnx, shapes={"batch": 1}  ->  ImportedModel(mod, inputs, outputs)
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import msgspec
import numpy as np
import onnx
import tvm
from onnx import helper
from tvm import relax
from tvm.ir import GenericConst

from microkernels.base.errors import ModelError
from relay_passes.ir.axes import view_of
from relay_passes.ir.graph import is_call
from relay_passes.ir.moving_operators import result_axis
from relay_passes.ir.quantization import Quantized, read_dequantize
from relay_passes.ir.traits import RESHAPES

from ...explain.origins import ModelNode, ModelNodes
from ...runtime.feeds import InputValue
from ...runtime.tensors import OutputInfo, TensorInfo
from ..expressions import constant, literal, static_dims
from ..model_input import ImportedModel, output_info, returned_types
from .graph.freeze_shapes import OpenSizes, Shapes, declared_dims, freeze_shapes
from .graph.graph import Graph, captured_names
from .importer import to_relax
from .reader.check_model import check_model
from .reader.left_data import LeftData
from .reader.load_graph import Values, bind_values, load_graph, read_values, shapes_with
from .reader.open_model import declared_interface
from .reader.read_model import ModelLike, read_all_but_large

logger = logging.getLogger("tvm_hybrid")


def import_onnx(
    model: ModelLike,
    shapes: Shapes | None = None,
    values: Values | None = None,
    *,
    keep_open: bool = False,
    check_indices: bool = False,
) -> ImportedModel:
    """Imports an ONNX model into Relax.

    Parameters
    ----------
    model
        Path of an ``.onnx`` file (external data beside it are found), its bytes, or a ModelProto,
        which is not changed.
    shapes
        Numbers for symbolic and unknown dimensions: shapes by input name, ``{"x": (1, 128)}``, or
        values by dimension name, ``{"batch": 1, "seq": 128}``, or both.
    values
        Values of inputs by name, ``{"axes": [1]}``. These inputs become constants. It must be given
        for parameters of operators, such as axes and shapes, that are inputs of the model.
    keep_open
        Dimensions of inputs that `shapes` gives no numbers stay open: they are variables of the
        module, named as in the model, or by input and axis such as ``x_0`` if they have no name. A
        dimension such as ``past + sequence`` is the sum of the others of these names.
    check_indices
        The module checks the indices of Gather, Scatter and the like, which it clips otherwise.

    Returns
    -------
    ImportedModel
        Inputs have static shapes unless `keep_open` is set, weights are constants, and inputs and
        outputs keep their ONNX names and order. Inputs whose values are given are left out.

    Raises
    ------
    ModelError
        The model cannot be read or is not valid.
    ShapeError
        A dimension has no value, or a value does not fit.
    InputValueError
        The value of an input must be known and is not given, or a given one does not fit.
    UnsupportedOperatorError
        An operator, or a form of one, cannot be imported; the message names the node.
    """
    start = time.perf_counter()
    proto, left = read_all_but_large(model)
    try:
        with left:
            graph = _load(proto, left)
        graph.check_indices = check_indices
        imported = _import(proto, graph, shapes, values, keep_open)
    except ModelError:
        raise
    except Exception as error:  # a malformed model can go wrong in more ways than can be foreseen
        raise ModelError(
            f"the model cannot be imported: {type(error).__name__}: {error}"
        ) from error
    logger.debug("imported %s in %.2f s", proto.graph.name, time.perf_counter() - start)
    return imported


def _load(proto: onnx.ModelProto, left: LeftData) -> Graph:
    check_model(proto)
    return load_graph(proto, left)


def _import(
    proto: onnx.ModelProto,
    graph: Graph,
    shapes: Shapes | None,
    values: Values | None,
    keep_open: bool,
) -> ImportedModel:
    sources = SourceNodes.of(graph)
    arrays = read_values(graph, values)
    declared = declared_interface(proto, graph, shapes) if keep_open else None
    opened = freeze_shapes(graph, shapes_with(arrays, shapes), keep_open)
    bind_values(graph, arrays)
    sizes = OpenSizes.of(opened)
    mod, graph = to_relax(graph, sizes)
    mod = fold_views(mod)
    inputs = [_info(graph, item.name, sizes) for item in graph.inputs]
    known = [InputValue.of(name, array) for name, array in arrays.items()]
    outputs = _outputs(proto, graph, mod, sizes)
    limits, nodes = sizes.known_limits(), sources.at_run_time(graph)
    return ImportedModel(mod, inputs, outputs, known, limits, declared, nodes)


def _info(graph: Graph, name: str, sizes: OpenSizes) -> TensorInfo:
    shape = sizes.inputs.get(name, graph.shape(name))
    assert shape is not None  # freeze_shapes saw to it
    kind = graph.narrow.get(name, graph.elem_type(name))
    return TensorInfo(name, shape, str(helper.tensor_dtype_to_np_dtype(kind)))


def _outputs(
    proto: onnx.ModelProto, graph: Graph, mod: tvm.IRModule, sizes: OpenSizes
) -> list[OutputInfo]:
    """Names from the model, shapes and dtypes from the module that will run."""
    outputs, types = [], returned_types(mod["main"])
    for item, found in zip(proto.graph.output, types, strict=True):
        info = output_info(item.name, found, declared_dims(item.type), sizes.symbols)
        kind = graph.narrow.get(item.name)
        if kind is not None:
            dtype = str(helper.tensor_dtype_to_np_dtype(kind))
            info = msgspec.structs.replace(info, dtype=dtype)
        outputs.append(info)
    return outputs


@dataclass(frozen=True)
class SourceNodes:
    """A list of nodes, each with the values that it reads and makes.

    Parameters
    ----------
    texts : list of str
        Name and operator of each.
    reads, makes : list of tuple of str
        Names of values.
    outputs : list of str
        The model's.
    """

    texts: list[str]
    reads: list[tuple[str, ...]]
    makes: list[tuple[str, ...]]
    outputs: list[str]

    @staticmethod
    def of(graph: Graph) -> SourceNodes:
        """Those of a graph that was just loaded; notes in it which node makes a value."""
        found = SourceNodes([], [], [], list(graph.outputs))
        for number, node in enumerate(graph.nodes):
            made = tuple(filter(None, node.output))
            found.texts.append(_text(node))
            found.reads.append((*filter(None, node.input), *sorted(captured_names(node))))
            found.makes.append(made)
            graph.origins.update(dict.fromkeys(made, number))
        return found

    def at_run_time(self, graph: Graph) -> ModelNodes:
        """Those that are not constant in a graph that was folded."""
        maker = {name: i for i, names in enumerate(self.makes) for name in names}
        kept = [
            number
            for number, names in enumerate(self.makes)
            if not all(name in graph.folded for name in names)
        ]
        alive = {*kept}
        nodes = {
            number: ModelNode(
                self.texts[number],
                tuple(
                    dict.fromkeys(
                        maker[name] for name in self.reads[number] if maker.get(name) in alive
                    )
                ),
            )
            for number in kept
        }
        return ModelNodes(nodes, tuple(maker.get(name) for name in self.outputs))


def _text(node: onnx.NodeProto) -> str:
    return f"{node.name or next(iter(node.output), '')} ({node.op_type})"


# Reshapes and transposes of constants become constants.
#
#     lv = R.reshape(metadata["bias"], R.shape([1, 64, 1, 1]))    ->    metadata["bias"] of that
#     shape
#
# Likewise of dequantised constants, as dequantisations of other integers. There is one
# for the bias of every convolution. numpy does it at once; TVM's FoldConstant would compile and run
# a kernel for each.


def fold_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Folds in every Relax function of a module."""
    mod = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for name, function in list(mod.functions.items()):
        if isinstance(function, relax.Function):
            mod[name] = _Folder(mod).visit_expr(function)
    # Of what the walk has met, constants and others' forms may have left nothing to compute.
    mod = relax.transform.DeadCodeElimination()(mod)
    return relax.transform.CanonicalizeBindings()(mod)


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = super().visit_call_(op)
        if not is_call(call, *RESHAPES, "relax.permute_dims") or static_dims(call) is None:
            return call
        source: relax.Expr | None = call.args[0]
        if isinstance(source, relax.Var):
            source = self.lookup_binding(source)
        array = _constant(source)
        if array is not None:
            return literal(_viewed(array, call))
        quantized = read_dequantize(source)
        array = None if quantized is None else _constant(quantized.data)
        if quantized is None or array is None:
            return call
        return _dequantized(call, quantized, _viewed(array, call))


def _constant(expr: relax.Expr | None) -> np.ndarray | None:
    return constant(expr) if isinstance(expr, GenericConst) else None


def _dequantized(call: relax.Call, quantized: Quantized, integers: np.ndarray) -> relax.Expr:
    """The view of a dequantised constant; as it was if the axis of its scales is cut by it."""
    axis = quantized.quantization.axis
    if axis is not None:
        axis = result_axis(call, axis)
        if axis is None:
            return call
    viewed = Quantized(literal(integers), quantized.quantization.along(axis), quantized.dtype)
    return viewed.dequantize()


def _viewed(array: np.ndarray, call: relax.Call) -> np.ndarray:
    view = view_of(array, call)
    assert view is not None
    return view

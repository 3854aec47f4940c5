"""ONNX to Relax: read, check, freeze shapes, fold and rewrite, convert.

model.onnx, shapes={"batch": 1}  ->  ImportedModel(mod, inputs, outputs)
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import msgspec
from onnx import helper
from tvm import relax

from microkernels.base.errors import ModelError
from microkernels.base.old_names import old_arguments

from ...explain.origins import ModelNode, ModelNodes
from ...runtime.feeds import InputValue
from ...runtime.tensors import DeclaredInterface, DynamicTensorInfo, TensorInfo
from ..model_input import ImportedModel, output_info, returned_types
from .graph.freeze_shapes import DynamicSizes, Shapes, declared_dims, freeze_shapes
from .graph.graph import Graph, captured_names, dtype_named
from .importer import to_relax
from .reader import load_graph as loading
from .reader.check_model import check_model
from .reader.interface import tensors_of
from .reader.load_graph import Values
from .reader.read_model import ModelLike, read_all_but_large

logger = logging.getLogger("tvm_hybrid")


@old_arguments(keep_open="keep_dynamic")
def import_onnx(
    model: ModelLike,
    shapes: Shapes | None = None,
    values: Values | None = None,
    *,
    keep_dynamic: bool = False,
    check_indices: bool = False,
) -> ImportedModel:
    """Imports an ONNX model into Relax.

    Parameters
    ----------
    model
        Path of an ``.onnx`` file (external data beside it are found), its bytes, or a ModelProto,
        which is not changed.
    shapes
        Numbers for symbolic and unknown dimensions: input name -> shape, ``{"x": (1, 128)}``, or
        dimension name -> value, ``{"batch": 1, "seq": 128}``, or both.
    values
        Input name -> value, ``{"axes": [1]}``. These inputs become constants. A value is required
        for an input that is a parameter of an operator, such as axes and shapes.
    keep_dynamic
        Whether dimensions of inputs without a number in `shapes` stay dynamic. They become
        variables of the module, with the model's name, or named by input and axis, such as ``x_0``.
        A dimension ``past + sequence`` is the sum of the dimensions of these names.
    check_indices
        Whether the program checks the indices of Gather, Scatter and the like; else it clips them.
    Returns
    -------
    ImportedModel
        Inputs have static shapes unless `keep_dynamic` is set, weights are constants, and inputs
        and outputs keep their ONNX names and order. Inputs with given values are left out.

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
            check_model(proto)
            graph = loading.load_graph(proto, left)
        graph.check_indices = check_indices
        sources = source_nodes(graph)
        arrays = loading.read_values(graph, values)
        declared = loading.declared_interface(proto, graph, shapes) if keep_dynamic else None
        dynamic = freeze_shapes(graph, loading.shapes_with(arrays, shapes), keep_dynamic)
        for name, array in arrays.items():
            graph.add_constant(name, array)
        graph.inputs = [item for item in graph.inputs if item.name not in arrays]
        sizes = DynamicSizes.of(dynamic)
        mod, graph = to_relax(graph, sizes)
        mod = relax.transform.DeadCodeElimination()(mod)
        inputs = []
        for name in (item.name for item in graph.inputs):
            kind = helper.tensor_dtype_to_np_dtype(graph.narrow.get(name, graph.elem_type(name)))
            shape = sizes.inputs.get(name, graph.shape(name))
            assert shape is not None  # freeze_shapes guarantees it
            inputs.append(TensorInfo(name, shape, str(kind)))
        known = [InputValue.of(name, array) for name, array in arrays.items()]
        # Names come from the model, shapes and dtypes from the module that will run.
        outputs, types = [], returned_types(mod["main"])
        named = list(tensors_of(proto.graph.output, graph))
        for value, (name, kind), found in zip(graph.outputs, named, types, strict=True):
            info = output_info(name, found, declared_dims(kind), sizes.symbols)
            if value in graph.narrow:
                dtype = dtype_named(graph.narrow[value])
                info = msgspec.structs.replace(info, dtype=dtype)
            outputs.append(info)
        if declared is not None and graph.sequences:
            made = (DynamicTensorInfo(each.name, each.shape, each.dtype) for each in outputs)
            declared = DeclaredInterface(declared.inputs, tuple(made))
        nodes = nodes_at_run_time(sources, graph)
    except ModelError:
        raise
    except Exception as error:  # a malformed model can fail in unforeseeable ways
        raise ModelError(
            f"the model cannot be imported: {type(error).__name__}: {error}"
        ) from error
    logger.debug("imported %s in %.2f s", proto.graph.name, time.perf_counter() - start)
    return ImportedModel(mod, inputs, outputs, known, sizes.limits, declared, nodes)


class SourceNode(NamedTuple):
    """A node of the model: its name and operator, and the names of its inputs and outputs."""

    text: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


def source_nodes(graph: Graph) -> list[SourceNode]:
    """The nodes of a freshly loaded graph; notes in the graph which node makes each value."""
    found = []
    for number, node in enumerate(graph.nodes):
        text = f"{node.name or next(iter(node.output), '')} ({node.op_type})"
        reads = (*filter(None, node.input), *sorted(captured_names(node)))
        found.append(SourceNode(text, reads, tuple(filter(None, node.output))))
        graph.origins.update(dict.fromkeys(found[-1].makes, number))
    return found


def nodes_at_run_time(sources: list[SourceNode], graph: Graph) -> ModelNodes:
    """The nodes that are not constant after folding."""
    maker = {name: i for i, each in enumerate(sources) for name in each.makes}
    alive = {i: each for i, each in enumerate(sources) if not graph.folded.issuperset(each.makes)}
    nodes = {}
    for number, each in alive.items():
        read = (maker[name] for name in each.reads if maker.get(name) in alive)
        nodes[number] = ModelNode(each.text, tuple(dict.fromkeys(read)))
    return ModelNodes(nodes, tuple(maker.get(name) for name in graph.outputs))

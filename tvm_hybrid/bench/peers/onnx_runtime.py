"""Sessions of ONNX Runtime: one that computes exactly what a model says, and one that is fast.

On a CPU without VNNI, ONNX Runtime's kernels of uint8 by int8 saturate. The first kind of session
avoids them (see `unsigned_products`), so it is right on every CPU. The second kind sets
`session.x64quantprecision`, with which ONNX Runtime avoids most of them on such CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from microkernels.base.arrays import SHIFT
from microkernels.isa import host_features

from ...report.timing import ContestantError

# Positions of an operand among the inputs: value, scale (None: no scale), zero point.
_Operand = tuple[int, int | None, int]
_TWO_OPERANDS: dict[str, tuple[_Operand, _Operand]] = {
    "MatMulInteger": ((0, None, 2), (1, None, 3)),
    "ConvInteger": ((0, None, 2), (1, None, 3)),
    "QLinearMatMul": ((0, 1, 2), (3, 4, 5)),
    "QLinearConv": ((0, 1, 2), (3, 4, 5)),
    "QGemm": ((0, 1, 2), (3, 4, 5)),
    "MatMulIntegerToFloat": ((0, 2, 4), (1, 3, 5)),
    "QAttention": ((0, 3, 6), (1, 4, 7)),
}
# Weights of operators that quantise the other operand themselves, to uint8.
_WEIGHTS: dict[str, tuple[_Operand, ...]] = {
    "DynamicQuantizeMatMul": ((1, 2, 3),),
    "DynamicQuantizeLSTM": ((1, 8, 9), (2, 10, 11)),
}
PRODUCTS = _TWO_OPERANDS.keys() | _WEIGHTS.keys()


def unsigned_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrites integer products so that ONNX Runtime computes them exactly on every CPU.

    On a CPU without VNNI, ONNX Runtime multiplies uint8 by int8 with vpmaddubsw, which saturates
    sums of two products at 16 bits, with graph optimisation or without. Its kernels of uint8 by
    uint8 are exact everywhere. v - z stays equal when both grow by 128, so signed operands become
    unsigned:

        y = MatMulInteger(a: u8, b: s8, za, zb)
        ->
        b2, zb2 = Cast(Cast(b, s32) + 128, u8), Cast(Cast(zb, s32) + 128, u8)
        y = MatMulInteger(a: u8, b2: u8, za, zb2)

    Constants are folded; a missing zero point becomes 128. Products of two signed operands are
    exact and stay. An operand whose type cannot be inferred stays. The given model is not changed.
    """
    if not any(node.op_type in PRODUCTS for node in model.graph.node):
        return model
    # Element types of all known tensors, by name.
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {item.name: item.data_type for item in inferred.initializer}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = list(changed.graph.node)
    del changed.graph.node[:]
    rewriter = _Rewriter(changed.graph)
    for node in nodes:
        for operand in _signed(node, types):
            rewriter.shift(node, operand)
        changed.graph.node.append(node)
    return changed


def _signed(node: onnx.NodeProto, types: Mapping[str, int]) -> list[_Operand]:
    """The signed operands of a node that also has an unsigned one."""

    def is_signed(operand: _Operand) -> bool:
        names = (*node.input[operand[0] :][:1], *node.input[operand[2] :][:1])
        return TensorProto.INT8 in [types[name] for name in names if name in types]

    if node.op_type in _TWO_OPERANDS:
        signed = [operand for operand in _TWO_OPERANDS[node.op_type] if is_signed(operand)]
        return signed if len(signed) == 1 else []
    return [operand for operand in _WEIGHTS.get(node.op_type, ()) if is_signed(operand)]


class _Rewriter:
    """Appends nodes and constants for unsigned operands to a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._constants = {item.name: item for item in graph.initializer}
        self._unsigned: dict[str, str] = {}

    def shift(self, node: onnx.NodeProto, operand: _Operand) -> None:
        """Makes an operand of a node, and its zero point, unsigned."""
        value, scale, zero = operand
        node.input.extend([""] * (zero + 1 - len(node.input)))
        node.input[value] = self._shifted(node.input[value])
        if node.input[zero]:
            node.input[zero] = self._shifted(node.input[zero])
            return
        like = None if scale is None else self._constants.get(node.input[scale])
        shape = tuple(like.dims) if like else ()
        node.input[zero] = self._constant(node.input[value] + "/zero", shape, np.uint8)

    def _shifted(self, name: str) -> str:
        if name not in self._unsigned:
            self._unsigned[name] = f"{name}/unsigned"
            if name in self._constants:
                wide = numpy_helper.to_array(self._constants[name]).astype(np.int32) + SHIFT
                tensor = numpy_helper.from_array(wide.astype(np.uint8), self._unsigned[name])
                self._graph.initializer.append(tensor)
            else:
                shift = self._constant(f"{name}/shift", (), np.int32)
                wide, total, result = f"{name}/wide", f"{name}/total", self._unsigned[name]
                nodes = [helper.make_node("Cast", [name], [wide], to=TensorProto.INT32)]
                nodes.append(helper.make_node("Add", [wide, shift], [total]))
                nodes.append(helper.make_node("Cast", [total], [result], to=TensorProto.UINT8))
                self._graph.node.extend(nodes)
        return self._unsigned[name]

    def _constant(self, name: str, shape: tuple[int, ...], dtype: type) -> str:
        """Adds a constant full of 128."""
        tensor = numpy_helper.from_array(np.full(shape, SHIFT, dtype), name)
        self._graph.initializer.append(tensor)
        return name


_PRECISION = "session.x64quantprecision"
_VNNI = frozenset({"avx512vnni", "avxvnni"})
_QUANTIZED = PRODUCTS | {"QuantizeLinear", "DynamicQuantizeLinear"}


def literal_session(model: onnx.ModelProto, threads: int = 1) -> Any:
    """Makes a session that computes exactly what the model says, operator by operator.

    bfloat16 is computed in float32, and outputs are rounded. The model must have all weights
    inside; `threads` work on one operator.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed or refuses the model.
    """
    runtime = import_runtime()
    options = _options(runtime, threads)
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        wide = wide_model(model)
        session = _open(runtime, unsigned_products(wide).SerializeToString(), options)
        return session if wide is model else _Rounding(session, model)
    except Exception as error:  # onnxruntime's and protobuf's exceptions have no common base
        raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error


class _Rounding:
    """A session of a widened model with the inputs and outputs of the original one."""

    def __init__(self, session: Any, model: onnx.ModelProto) -> None:
        self._session = session
        self._narrow = {
            value.name: value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
            for value in model.graph.output
        }

    def run(self, names: list[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Runs the session."""
        wide = {
            name: value.astype(np.float32) if value.dtype == ml_dtypes.bfloat16 else value
            for name, value in feeds.items()
        }
        found = zip(names or self._narrow, self._session.run(names, wide), strict=True)
        narrow, bfloat16 = self._narrow, ml_dtypes.bfloat16
        return [value.astype(bfloat16) if narrow[name] else value for name, value in found]


def optimised_session(model: str | bytes, threads: int = 1, profile: str = "") -> Any:
    """Makes a session with ONNX Runtime's default optimisations.

    Parameters
    ----------
    model : str or bytes
        A file's path or its content.
    threads : int
        Threads inside one operator; operators run one after the other.
    profile : str
        Prefix of the path of the profile to write; "" for none.

    Raises
    ------
    ContestantError
        If onnxruntime is not installed or refuses the model.
    """
    runtime = import_runtime()
    options = _options(runtime, threads)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    try:
        options.add_session_config_entry(_PRECISION, "1")
        return _open(runtime, model, options)
    except Exception:  # with this entry, it may want a kernel for two signed operands, and has none
        options.add_session_config_entry(_PRECISION, "0")
    try:
        return _open(runtime, model, options)
    except Exception as error:
        raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error


def outputs_of(session: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Runs a session and returns all outputs.

    Raises
    ------
    ContestantError
        If ONNX Runtime fails.
    """
    try:
        return list(session.run(None, dict(feeds)))
    except Exception as error:
        raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error


def why_products_differ(model: onnx.ModelProto) -> str:
    """Why another library's integer products may be wrong on this CPU; "" if they are right.

    Without VNNI, ONNX Runtime and oneDNN (which OpenVINO uses) multiply uint8 by int8 with
    vpmaddubsw, which saturates.
    """
    quantized = any(node.op_type in _QUANTIZED for node in model.graph.node)
    saturates = quantized and not _VNNI & host_features()
    return "its u8s8 kernels saturate on this CPU" if saturates else ""


def last_line(error: BaseException) -> str:
    """Last line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def import_runtime() -> Any:
    """Imports onnxruntime.

    Raises
    ------
    ContestantError
        If it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ContestantError(
            "onnxruntime is not installed; pip install onnxruntime brings it"
        ) from error
    return onnxruntime


def _options(runtime: Any, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _open(runtime: Any, model: str | bytes, options: Any) -> Any:
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# Node attributes whose value is an element type.
_NAME_TYPES = frozenset({"to", "dtype", "output_dtype"})


def wide_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrites a bfloat16 model in float32, as ONNX Runtime lacks CPU kernels for bfloat16.

        y: bf16 = MatMul(x: bf16, w: bf16)
        ->
        y: f32 = MatMul(x: f32, w: f32)

    Every bfloat16 is a float32, so inputs and weights keep their values. Results count as exact
    compared with those that are rounded to bfloat16. A model without bfloat16 is returned as it is.
    """
    narrow = TensorProto.BFLOAT16
    if not any(getattr(holder, field) == narrow for holder, field in _types(model.graph)):
        return model
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for holder, field in _types(wide.graph):
        if getattr(holder, field) != narrow:
            continue
        if isinstance(holder, TensorProto):
            values = numpy_helper.to_array(holder).astype(np.float32)
            holder.CopyFrom(numpy_helper.from_array(values, holder.name))
        else:
            setattr(holder, field, TensorProto.FLOAT)
    return wide


def _types(graph: onnx.GraphProto) -> Iterator[tuple[Any, str]]:
    """Yields every object with an element type, and the field that holds it, subgraphs included."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.type.tensor_type, "elem_type"
    yield from ((tensor, "data_type") for tensor in graph.initializer)
    for attribute in (each for node in graph.node for each in node.attribute):
        if attribute.type == AttributeProto.TENSOR:
            yield attribute.t, "data_type"
        elif attribute.type == AttributeProto.GRAPH:
            yield from _types(attribute.g)
        elif attribute.name in _NAME_TYPES:
            yield attribute, "i"

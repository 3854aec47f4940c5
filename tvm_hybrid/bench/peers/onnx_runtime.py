"""Sessions of ONNX Runtime: one that computes what a model says, one that is fast.

Where a CPU lacks VNNI, its kernels of uint8 by int8 saturate. The first kind of session does
without them (see `unsigned_products`) and so is right on every CPU. The second sets
`session.x64quantprecision`, with which ONNX Runtime avoids most of them, there alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from microkernels.isa import host_features

from ...report.timing import ContestantError
from .unsigned_products import PRODUCTS, unsigned_products
from .wide_model import wide_model

_PRECISION = "session.x64quantprecision"
_VNNI = frozenset({"avx512vnni", "avxvnni"})
_QUANTIZED = PRODUCTS | {"QuantizeLinear", "DynamicQuantizeLinear"}


def literal_session(model: onnx.ModelProto, threads: int = 1) -> Any:
    """A session that computes what the model says, operator by operator, integers exactly.

    Of bfloat16 it computes in float32, and rounds the outputs.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, all weights inside it.
    threads : int
        Threads inside one operator.

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
    """A session of a widened model that takes and gives what the model itself does."""

    def __init__(self, session: Any, model: onnx.ModelProto) -> None:
        self._session = session
        self._narrow = {
            value.name: value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
            for value in model.graph.output
        }

    def run(self, names: list[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """As of any session."""
        wide = {
            name: value.astype(np.float32) if value.dtype == ml_dtypes.bfloat16 else value
            for name, value in feeds.items()
        }
        found = zip(names or self._narrow, self._session.run(names, wide), strict=True)
        return [
            value.astype(ml_dtypes.bfloat16) if self._narrow[name] else value
            for name, value in found
        ]


def optimised_session(model: str | bytes, threads: int = 1, profile: str = "") -> Any:
    """A session with ONNX Runtime's default optimisations.

    Parameters
    ----------
    model : str or bytes
        A file's path or its content.
    threads : int
        Threads inside one operator; operators run one after the other.
    profile : str
        First part of the path of the profile to write; "" for none.

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
    except Exception:  # it turns a product of two signed operands into one that it has no kernel of
        options.add_session_config_entry(_PRECISION, "0")
    try:
        return _open(runtime, model, options)
    except Exception as error:
        raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error


def outputs_of(session: Any, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs of a session.

    Raises
    ------
    ContestantError
        If ONNX Runtime fails on the way.
    """
    try:
        return list(session.run(None, dict(feeds)))
    except Exception as error:
        raise ContestantError(f"ONNX Runtime: {last_line(error)}") from error


def why_products_differ(model: onnx.ModelProto) -> str:
    """Why a library's integer products of a model may be wrong on this CPU; "" if they are right.

    Without VNNI the instruction for bytes is vpmaddubsw; ONNX Runtime and oneDNN, which OpenVINO
    uses, take it for uint8 by int8.
    """
    quantized = any(node.op_type in _QUANTIZED for node in model.graph.node)
    saturates = quantized and not _VNNI & host_features()
    return "its u8s8 kernels saturate on this CPU" if saturates else ""


def last_line(error: BaseException) -> str:
    """The last line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def import_runtime() -> Any:
    """The module onnxruntime.

    Raises
    ------
    ContestantError
        If it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ContestantError(
            "onnxruntime is not installed; pip install 'tvm_hybrid[bench]' brings it"
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

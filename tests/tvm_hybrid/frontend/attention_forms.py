"""Models with many forms of an attention operator, and attention by its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tests.onnx_builder import CONTRIB
from tvm_hybrid import InferenceSession
from tvm_hybrid.frontend import import_onnx

from .models import Declaration, f32, make_model, onnxruntime_run, random, run_imported

B, S, N, D = 2, 5, 3, 8
H = N * D
# Batch and lengths of [B, S, H], [B, N, S, D] and [2, B, N, S, D]; masks are of rank 2.
_DYNAMIC_AXES = {0: [], 1: [], 2: [0, 1], 3: [0, 1], 4: [0, 2], 5: [1, 3]}
RTOL, ATOL = 1e-5, 5e-6  # sums of a few dozen products of numbers near 1, each rounded by 6e-8


class Forms:
    """A model with one node for each form of an operator.

    Parameters
    ----------
    domain
        Domain of the operator.
    """

    def __init__(self, op_type: str, domain: str = CONTRIB, opset: int = 17) -> None:
        self.op_type, self.domain, self.opset = op_type, domain, opset
        self.feeds: dict[str, NDArray[Any]] = {}
        self.constants: dict[str, NDArray[Any]] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[Declaration] = []

    def feed(self, array: NDArray[Any]) -> str:
        """Adds an input."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return name

    def constant(self, array: Any) -> str:
        """Adds a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def add(self, *inputs: str, outputs: int = 1, ranks: Any = None, **attributes: Any) -> None:
        """Adds one more form; its results are outputs of the model."""
        names = [f"y{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(
            self.op_type, inputs, names, name=f"n{len(self.nodes)}", domain=self.domain,
            **attributes,
        )  # fmt: skip
        self.nodes.append(node)
        ranks = ranks or [3] * outputs
        self.outputs += [f32(n, *([None] * r)) for n, r in zip(names, ranks, strict=True)]

    def model(self) -> onnx.ModelProto:
        """The ONNX model."""
        inputs: list[Declaration] = [
            (name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.feeds.items()
        ]
        return make_model(self.nodes, inputs, self.outputs, self.constants, opset=self.opset)

    def check(self, expected: Any = None, ranks: tuple[int, ...] = (3, 4, 5)) -> None:
        """Compares results of some ranks with ONNX Runtime's or with `expected`."""
        if expected is None:
            expected = onnxruntime_run(self.model(), self.feeds)
        imported = import_onnx(self.model())
        results = run_imported(imported, self.feeds, {"kind": "llvm", "opt-level": 0})
        self._compare(results, expected, ranks)
        session = InferenceSession(self.dynamic_model(), num_threads=1)
        assert session.programs, "some sizes cannot stay dynamic"
        self._compare(session.run(None, self.feeds), expected, ranks)

    def dynamic_model(self) -> onnx.ModelProto:
        """The model with dynamic batch and lengths; equal sizes share one symbol.

        The number of sequences stays static if one vector holds their lengths: that vector may also
        hold what packed kernels need.
        """
        model = self.model()
        ranks = [len(item.type.tensor_type.shape.dim) for item in model.graph.input]
        for item, rank in zip(model.graph.input, ranks, strict=True):
            dims = item.type.tensor_type.shape.dim
            is_table = item.type.tensor_type.elem_type == TensorProto.FLOAT and rank == 2
            for axis in [0] if is_table else _DYNAMIC_AXES[rank]:
                if axis > (0 if rank < 5 else 1) or 1 not in ranks:
                    dims[axis].dim_param = f"n{dims[axis].dim_value}"
        return model

    def _compare(self, results: Any, expected: Any, ranks: tuple[int, ...]) -> None:
        for (name, _, dims), got, wanted in zip(self.outputs, results, expected, strict=True):
            assert got.shape == wanted.shape, name
            if dims is not None and len(dims) in ranks:
                np.testing.assert_allclose(got, wanted, RTOL, ATOL, err_msg=name)


def integers(*rows: Any) -> NDArray[np.int32]:
    """Random masks and lengths."""
    return np.array(rows, np.int32)


def attention(q: Any, k: Any, v: Any, mask: Any = 0.0, scale: float | None = None) -> NDArray[Any]:
    """softmax(q k^T * scale + mask) v in float64, for heads [batch, heads, length, size]."""
    scores = np.asarray(q, np.float64) @ np.swapaxes(np.asarray(k, np.float64), -1, -2)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale) + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ np.asarray(v, np.float64)


def heads(x: NDArray[Any], count: int = N) -> NDArray[Any]:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def rows(x: NDArray[Any]) -> NDArray[Any]:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    x = x.swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1)


def caches(half: int, seed: int = 0, length: int = 32) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosine and sine caches of random angles."""
    angles = random(length, half, seed=seed)
    return np.cos(angles), np.sin(angles)

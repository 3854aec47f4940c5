"""NumpyModel: an ONNX model that ONNX's reference evaluator runs operator by operator in NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from microkernels.base.errors import CompileError
from relay_passes.ir.decisions import Decision

from ...frontend.open_model import OpenModel
from ...runtime.tensors import numpy_dtype
from .numpy_operators import operators

KERNEL = "NumPy"


class NotNeededError(Exception):
    """The run was given up, because its answer comes from elsewhere."""


class _Evaluator(ReferenceEvaluator):  # type: ignore[misc]  # has no types
    """The evaluator of a graph or a subgraph; it tells before every node what it is about to do."""

    current = threading.local()

    def _log(self, _level: int, _pattern: str, *_arguments: Any) -> None:
        is_needed = getattr(self.current, "is_needed", None)
        if is_needed is not None and not is_needed():
            raise NotNeededError


class NumpyModel:
    """A model that runs at once, at the speed of NumPy and its products of matrices.

    Parameters
    ----------
    opened : OpenModel
        The model, with its weights.

    Raises
    ------
    CompileError
        If the evaluator does not know an operator; nothing else finds that out before.
    """

    def __init__(self, opened: OpenModel) -> None:
        self._graph = opened.proto.graph
        self._dtypes = [each.dtype for each in opened.outputs]
        versions = {each.domain: each.version for each in opened.proto.opset_import}
        try:
            self._evaluator = _Evaluator(opened.proto, new_ops=operators(versions.get("", 1)))
        except Exception as error:  # it raises whatever its operators do
            first = str(error).strip().partition("\n")[0]
            raise CompileError(f"NumPy cannot run this model: {first}") from error

    def run(
        self, feeds: Mapping[str, np.ndarray], is_needed: Callable[[], bool]
    ) -> list[np.ndarray]:
        """All outputs, in order, as arrays of their own; errors are those of NumPy.

        `is_needed` is asked before every operator.

        Raises
        ------
        NotNeededError
            If the answer is not wanted any more.
        """
        _Evaluator.current.is_needed = is_needed
        try:
            with np.errstate(all="ignore"):
                found = self._evaluator.run(None, dict(feeds))
        finally:
            _Evaluator.current.is_needed = None
        typed = zip(found, self._dtypes, strict=True)
        return [np.array(each, dtype and numpy_dtype(dtype)) for each, dtype in typed]

    def decisions(self, reason: str) -> list[Decision]:
        """That NumPy runs every node of the graph, and why."""
        return [_decision(node, reason) for node in self._graph.node]


def _decision(node: onnx.NodeProto, reason: str) -> Decision:
    name = node.name or (node.output[0] if node.output else "")
    origins = (f"{name} ({node.op_type})",)
    return Decision(
        node=name, op=node.op_type, taken=False, kernel=KERNEL, reason=reason, origins=origins
    )

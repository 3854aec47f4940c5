"""TVM's ONNX importer as we use it: a subclass gives the weights, and may convert nodes itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend


def operators_of_tvm() -> frozenset[str]:
    """Names of the operators that TVM has a converter for, of whatever domain.

    Needs `onnx_frontend._get_convert_map`.
    """
    return frozenset(onnx_frontend._get_convert_map())


def node_inputs(values: Sequence[Any]) -> list[Any]:
    """Inputs as converters take them, which ask for more than there are: those are None.

    Needs `onnx_frontend.onnx_input`, which is such a list.
    """
    return onnx_frontend.onnx_input(values)


class OnnxImporter(onnx_frontend.ONNXGraphImporter):
    """Makes a Relax module of a graph without initializers.

    Needs of TVM that `from_onnx` calls the three methods that are overridden here, that it finds
    values by name in `_nodes`, and that a node's attributes have its name under "tvm_custom".

    Parameters
    ----------
    shapes : mapping
        The inputs' shapes. Given apart from the graph, where TVM takes a size of 0 for an unknown
        one.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        lists = {name: list(shape) for name, shape in shapes.items()}
        super().__init__(lists, {}, keep_params_in_input=False, sanitize=True)

    def constants(self) -> dict[str, relax.Expr]:
        """The weights, by their names in the graph."""
        return {}

    def convert(
        self, node: str, op_type: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        """The value of the node of this name; TVM's unless a subclass says otherwise."""
        return self.convert_by_tvm(op_type, inputs, attrs, opset)

    def convert_by_tvm(
        self, op_type: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        """The value that TVM's converter makes."""
        return super()._convert_operator(op_type, inputs, attrs, opset)

    def close(self) -> None:
        """Closes the block left open by an error: TVM warns when a builder dies with one.

        Needs `BlockBuilder._end_block`.
        """
        with contextlib.suppress(Exception):
            self.bb._end_block()

    def _sanitize_name(self, name: str) -> str:
        """A name that no other value has, without dots; TVM warns of every change.

        Needs `_name_supply`, and that TVM asks this method for the names of inputs.
        """
        plain = name.replace(".", "_") or "empty_"
        starts = plain[0].isalpha() or plain[0] == "_"
        return str(self._name_supply.fresh_name(plain if starts else f"input_{plain}"))

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        self._nodes.update(self.constants())

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Left to the caller: TVM does not know a subclass's operators."""

    def _convert_operator(
        self, op_name: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        return self.convert(attrs["tvm_custom"]["name"], op_name, inputs, attrs, opset)

from collections.abc import Mapping, Sequence
from typing import Any

from ....ir import Expr, IRModule
from ...block_builder import BlockBuilder

class onnx_input(list[Any]): ...

class ONNXGraphImporter:
    bb: BlockBuilder
    opset: int | None
    _nodes: dict[str, Expr]
    _params: dict[str, Any]
    _name_supply: Any
    def __init__(
        self,
        shape_dict: Mapping[str, Sequence[Any]],
        dtype_dict: str | Mapping[str, str],
        keep_params_in_input: bool = False,
        sanitize: bool = True,
    ) -> None: ...
    def from_onnx(self, graph: Any, opset: int) -> IRModule: ...
    def _convert_operator(
        self, op_name: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> Expr: ...

def _get_convert_map() -> dict[str, Any]: ...
def from_onnx(
    model: Any,
    shape_dict: Mapping[str, Sequence[Any]] | None = None,
    *,
    keep_params_in_input: bool = False,
) -> IRModule: ...

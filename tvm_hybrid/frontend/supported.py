"""Which operators TVM's ONNX importer takes."""

from __future__ import annotations

from functools import cache

import onnx
from tvm.relax.frontend.onnx import onnx_frontend

from .graph import is_standard

# TVM looks operators up by name and ignores the domain; these are of ONNX Runtime's.
CONTRIB = frozenset({"Attention", "EmbedLayerNormalization", "MatMulInteger16"})
CONTRIB_DOMAIN = "com.microsoft"


@cache
def _converters() -> frozenset[str]:
    return frozenset(onnx_frontend._get_convert_map())


def tvm_imports(node: onnx.NodeProto) -> bool:
    """Whether TVM has a converter for the node's operator, of its domain."""
    if not is_standard(node):
        return node.domain == CONTRIB_DOMAIN and node.op_type in CONTRIB & _converters()
    return node.op_type in _converters() - CONTRIB

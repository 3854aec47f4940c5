"""Which operators can be imported: those with a converter of TVM's or of our own."""

from __future__ import annotations

import difflib
from functools import cache

import onnx

from microkernels.base.tvm_compat.onnx_importer import operators_of_tvm

from .converters import CONVERTERS
from .graph import CONTRIB_DOMAIN, OWN_DOMAIN, is_standard

# TVM looks operators up by name and ignores the domain; these are of ONNX Runtime's.
CONTRIB = frozenset({"MatMulInteger16"})
# Rewrites replace these or refuse a form; what TVM's converters do not expect, they ignore.
REPLACED = frozenset({"Attention", "EmbedLayerNormalization"})
# Operators that rewrites write and only our converters know.
OWN = frozenset(
    {
        *("CausalMask", "DecodeFloat", "DeformColumns", "DequantizeBlocks", "EncodeFloat"),
        *("FourierTable", "Frames", "MaxPoolPlaces", "RandomNumbers", "Recurrent", "Repeat"),
        *("Select", "UpdateCache"),
    }
)


@cache
def _converters() -> frozenset[str]:
    return operators_of_tvm() | CONVERTERS.keys()


def has_converter(node: onnx.NodeProto) -> bool:
    """Whether there is a converter for the node's operator, of its domain."""
    if node.domain == OWN_DOMAIN:
        return node.op_type in OWN
    if not is_standard(node):
        return node.domain == CONTRIB_DOMAIN and node.op_type in CONTRIB & _converters()
    return node.op_type in _converters() - CONTRIB - REPLACED - OWN


def why_unsupported(node: onnx.NodeProto, opset: int) -> str:
    """Why an operator without a converter has none, and what to do about it."""
    if not is_standard(node):
        return (
            f"{node.op_type} of domain {node.domain} is not known; export the model with standard "
            "operators, or put what it computes into the model as a function of ONNX"
        )
    schemas = [each for each in onnx.defs.get_all_schemas_with_history() if not each.domain]
    known = {schema.name for schema in schemas}
    if node.op_type in known:
        first = min(each.since_version for each in schemas if each.name == node.op_type)
        if first > opset:
            return (
                f"{node.op_type} came with opset {first}, and the model asks for opset {opset}; "
                "export it for a newer one"
            )
        return (
            f"{node.op_type} is not supported; replace it by other operators when you export the "
            "model, or leave this part out"
        )
    near = difflib.get_close_matches(node.op_type, sorted(known), 2)
    guess = f"did you mean {' or '.join(near)}? Else " if near else ""
    return (
        f"{node.op_type} is not known: it is no operator of ONNX; {guess}give it the domain and "
        "the function that define it, or export the model with standard operators"
    )

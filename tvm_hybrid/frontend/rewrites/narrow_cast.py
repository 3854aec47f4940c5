"""Cast to and from types of 2, 4 or 8 bits (narrow_types.py).

    Cast(x: f8, to=f16)    ->    Cast(DecodeFloat(x), to=f16)
    Cast(x: f16, to=f8)    ->    EncodeFloat(Cast(x, to=f32))
    Cast(x: f32, to=i4)    ->    Cast(Mod(Cast(x, to=i32) + 8, 16) - 8, to=i8)

Integers keep their low bits. float64 is rounded to float32 first, as in ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from ..graph import OWN_DOMAIN, Graph
from ..narrow_floats import decode, encode
from ..narrow_types import FLOATS, INTEGERS, NARROW, stored_type
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites


@rewrites("Cast")
def narrow_cast(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A narrow float as float32, then the result from that."""
    x, attributes = node.input[0], attributes_of(node)
    source, target = graph.narrow.get(x), attributes["to"]
    if source not in FLOATS and target not in NARROW:
        return None
    build, output = NodeBuilder(graph, node), node.output[0]
    if source == target:
        build.add("Identity", x, output=output)
        return build.nodes
    if source in FLOATS:
        x = decode_float(build, x)
    if target in FLOATS:
        encode_float(build, x, graph.dims(node.input[0]), target, output)
    elif target in INTEGERS:
        low = _low_bits(build, build.add("Cast", x, to=TensorProto.INT32), *INTEGERS[target])
        build.add("Cast", low, output=output, to=stored_type(target))
        graph.narrow[output] = target
    else:
        build.add("Cast", x, output=output, to=target)
    return build.nodes


def decode_float(build: NodeBuilder, codes: str) -> str:
    """A narrow float as float32."""
    graph, elem_type = build.graph, build.graph.narrow[codes]
    if codes in graph.constants:
        return build.constant(decode(graph.constants[codes], elem_type))
    value = build.add("DecodeFloat", codes, domain=OWN_DOMAIN, elem_type=elem_type)
    dims = graph.dims(codes)
    if dims is not None:
        graph.declare(value, TensorProto.FLOAT, dims)
    return value


def encode_float(
    build: NodeBuilder,
    value: str,
    dims: Sequence[int | None] | None,
    elem_type: int,
    output: str,
) -> None:
    """A value of any type as a narrow float, by the node's attributes saturate and round_mode.

    Parameters
    ----------
    dims
        The sizes of the value, None where one is open; None if its rank is not known.
    """
    graph, attributes = build.graph, attributes_of(build.source)
    saturate, round_mode = attributes.get("saturate", 1), attributes.get("round_mode", "up")
    graph.narrow[output] = elem_type
    if value in graph.constants:
        wide = graph.constants[value].astype(np.float32)
        codes = build.constant(encode(wide, elem_type, bool(saturate), round_mode))
        graph.narrow[codes] = elem_type
        build.add("Identity", codes, output=output)
        return
    build.add(
        "EncodeFloat",
        build.add("Cast", value, to=TensorProto.FLOAT),
        output=output,
        domain=OWN_DOMAIN,
        elem_type=elem_type,
        saturate=saturate,
        round_mode=round_mode,
    )
    if dims is not None:
        graph.declare(output, TensorProto.UINT8, dims)


def _low_bits(build: NodeBuilder, value: str, low: int, high: int) -> str:
    """An int32 wrapped to a range that is a power of two."""
    first, count = build.constant(low, np.int32), build.constant(high - low + 1, np.int32)
    wrapped = build.add("Mod", build.add("Sub", value, first), count)
    return build.add("Add", wrapped, first)

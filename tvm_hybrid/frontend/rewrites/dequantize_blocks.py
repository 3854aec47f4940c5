"""DequantizeBlocks: the front end's own operator for values with one scale per block of an axis.

    DequantizeBlocks(q: [K, N], scale: [K / b, N], zero_point: [K / b, N], axis=0, block_size=b)
        =   (q - zero_point) * scale, each repeated b times along the axis

Like DequantizeLinear of opset 21, but for every opset, with zero points that may be floats, and
never computed ahead: weights stay as small as they are.
"""

from __future__ import annotations

from ..graph import OWN_DOMAIN
from ..node_builder import NodeBuilder


def dequantize_blocks(
    build: NodeBuilder,
    q: str,
    scale: str,
    zero_point: str,
    axis: int,
    block: int,
    output: str = "",
) -> str:
    """Writes one; the result has the type of the scale.

    Parameters
    ----------
    zero_point
        ``""`` if it is 0.
    axis
        Of the blocks; the last block may be short.
    """
    graph = build.graph
    shape = graph.shape(q)
    if shape is None:
        raise ValueError(f"the shape of {q!r} is not static")
    inputs = [q, scale, *([zero_point] if zero_point else [])]
    output = build.add(
        "DequantizeBlocks",
        *inputs,
        output=output,
        domain=OWN_DOMAIN,
        axis=axis % len(shape),
        block_size=block,
    )
    graph.declare(output, graph.elem_type(scale), shape)
    return output

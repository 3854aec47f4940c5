"""Gemm as MatMul and Add: ONNX Runtime's quantiser of weights alone knows MatMul only.

Before

    y = Gemm(x, w, b, transB=1)

After

    y = Add(MatMul(x, w transposed), b)
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..frontend.graph import captured_names


def plain_products(model: onnx.ModelProto, exclude: tuple[str, ...] = ()) -> None:
    """Rewrites every Gemm of a model whose second operand is a float32 weight.

    Those that scale, or transpose the first operand, stay.

    Parameters
    ----------
    model : onnx.ModelProto
        It is changed.
    exclude : tuple of str
        Names of nodes that stay.
    """
    weights = {each.name: each for each in model.graph.initializer}
    made: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        weight = weights.get(node.input[1]) if _is_plain(node) else None
        if weight is None or node.name in exclude or weight.data_type != onnx.TensorProto.FLOAT:
            nodes.append(node)
            continue
        name = node.input[1]
        if any(each.name == "transB" and each.i for each in node.attribute):
            if name not in made:
                made[name] = f"{name}_transposed"
                turned = np.ascontiguousarray(numpy_helper.to_array(weight).T)
                model.graph.initializer.append(numpy_helper.from_array(turned, made[name]))
            name = made[name]
        nodes += _product(node, name)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    read = {item.name for item in model.graph.output}
    for node in nodes:
        read |= {*node.input} | captured_names(node)
    left = [each for each in model.graph.initializer if each.name not in made.keys() - read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(left)


def _is_plain(node: onnx.NodeProto) -> bool:
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return (
        node.op_type == "Gemm"
        and node.domain in ("", "ai.onnx")
        and not given.get("transA", 0)
        and given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0
    )


def _product(node: onnx.NodeProto, weight: str) -> list[onnx.NodeProto]:
    (result,) = node.output
    bias = node.input[2] if len(node.input) > 2 else ""
    product = f"{result}_product" if bias else result
    found = [helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name)]
    if bias:
        add = f"{node.name}_bias" if node.name else ""
        found.append(helper.make_node("Add", [product, bias], [result], name=add))
    return found

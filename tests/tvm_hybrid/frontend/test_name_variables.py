"""All variables that a node becomes are named after the node."""

from __future__ import annotations

import numpy as np

from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.explain.origins import numbers_in
from tvm_hybrid.frontend import import_onnx


def test_parts_of_a_node_have_its_number() -> None:
    g = OnnxBuilder()
    x = g.input("x", (4,), np.int64)
    table = g.constant(np.ones((7, 3)), np.float32)
    y = g.node("Relu", g.node("Gather", table, x))  # wraps indices, which are dynamic
    first, second = g.nodes("Split", 2, y, axis=0)
    g.output(g.node("Sub", first, second), (2, 3))
    imported = import_onnx(g.model())
    bindings = [each for b in imported.mod["main"].body.blocks for each in b.bindings]
    numbers = [numbers_in([str(each.var.name)]) for each in bindings]
    assert all(numbers[:-1])
    order = [each[0] for each in numbers if each]
    assert order == sorted(order) and order.count(0) > 1 and {*order} == {0, 1, 2, 3}
    assert [node.text for node in imported.nodes.nodes.values()] == [
        *("Gather0 (Gather)", "Relu1 (Relu)", "Split2 (Split)", "Sub3 (Sub)")
    ]
    assert imported.nodes.outputs == (3,)

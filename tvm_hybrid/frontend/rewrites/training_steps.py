"""Steps of optimisers (domain ai.onnx.preview.training) as arithmetic.

Momentum(r, t, x, g, v)    ->    v' = alpha v + beta' (g + norm x),  x' = x - r v'

Several tensors in one node take the same step, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of
from .registry import rewrites

DOMAIN = "ai.onnx.preview.training"


class _Step:
    """The arithmetic of one tensor; numbers are of its type."""

    def __init__(self, build: NodeBuilder, x: str) -> None:
        source = build.source
        self.build = build
        self.x = x
        self.attributes = attributes_of(source)
        elem_type = build.graph.elem_type(x)
        self.rate, self.count = (build.add("Cast", name, to=elem_type) for name in source.input[:2])

    def number(self, value: float) -> str:
        return self.build.number(self.x, value)

    def attribute(self, name: str, default: float | None = None) -> Any:
        return self.attributes.get(name, default)

    def of(self, op_type: str, *inputs: str, output: str = "") -> str:
        return self.build.add(op_type, *inputs, output=output)

    def later(self, then: str, otherwise: str) -> str:
        """One value after the first step, another one in it."""
        return self.of("Where", self.of("Greater", self.count, self.number(0)), then, otherwise)

    def gradient(self, g: str) -> str:
        """With that of the regularisation."""
        norm = self.number(self.attribute("norm_coefficient", 0.0))
        return self.of("Add", self.of("Mul", norm, self.x), g)

    def mixed(self, old: str, new: str, share: float) -> str:
        """A running mean."""
        kept = self.of("Mul", self.number(share), old)
        return self.of("Add", kept, self.of("Mul", self.number(1 - share), new))


def _adagrad(step: _Step, g: str, h: str) -> list[str]:
    decay = step.of("Mul", step.count, step.number(step.attribute("decay_factor", 0.0)))
    rate = step.of("Div", step.rate, step.of("Add", step.number(1), decay))
    gradient = step.gradient(g)
    squares = step.of("Add", h, step.of("Mul", gradient, gradient))
    epsilon = step.number(step.attribute("epsilon", 1e-6))
    size = step.of("Add", step.of("Sqrt", squares), epsilon)
    change = step.of("Div", step.of("Mul", rate, gradient), size)
    return [step.of("Sub", step.x, change), squares]


def _adam(step: _Step, g: str, v: str, h: str) -> list[str]:
    alpha, beta = step.attribute("alpha", 0.9), step.attribute("beta", 0.999)
    gradient = step.gradient(g)
    mean = step.mixed(v, gradient, alpha)
    squares = step.mixed(h, step.of("Mul", gradient, gradient), beta)
    epsilon = step.number(step.attribute("epsilon", 1e-6))
    size = step.of("Add", step.of("Sqrt", squares), epsilon)
    one = step.number(1)
    first, second = (
        step.of("Sub", one, step.of("Pow", step.number(share), step.count))
        for share in (alpha, beta)
    )
    corrected = step.of("Div", step.of("Mul", step.rate, step.of("Sqrt", second)), first)
    rate = step.later(corrected, step.rate)
    moved = step.of("Sub", step.x, step.of("Mul", rate, step.of("Div", mean, size)))
    shrunk = step.number(1 - step.attribute("norm_coefficient_post", 0.0))
    return [step.of("Mul", shrunk, moved), mean, squares]


def _momentum(step: _Step, g: str, v: str) -> list[str]:
    alpha, mode = step.number(step.attribute("alpha")), step.attribute("mode")
    if mode not in ("standard", "nesterov"):
        raise ValueError(f"mode {mode!r} is neither standard nor nesterov")
    gradient = step.gradient(g)
    share = step.later(step.number(step.attribute("beta")), step.number(1))
    kept = step.of("Mul", alpha, v)
    mean = step.of("Add", kept, step.of("Mul", share, gradient))
    change = mean
    if mode == "nesterov":
        change = step.of("Add", gradient, step.of("Mul", alpha, mean))
    return [step.of("Sub", step.x, step.of("Mul", step.rate, change)), mean]


_STEPS: dict[str, tuple[Callable[..., list[str]], int]] = {
    "Adagrad": (_adagrad, 3),
    "Adam": (_adam, 4),
    "Momentum": (_momentum, 3),
}


@rewrites(*_STEPS, domain=DOMAIN)
def training_step(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto]:
    """The step of every tensor; inputs and outputs are grouped by their roles."""
    function, roles = _STEPS[node.op_type]
    tensors, rest = divmod(len(node.input) - 2, roles)
    if rest or not tensors or len(node.output) != tensors * (roles - 1):
        raise ValueError(f"{len(node.input)} inputs and {len(node.output)} outputs do not fit")
    build = NodeBuilder(graph, node)
    for number in range(tensors):
        x, *others = node.input[2 + number :: tensors]
        if graph.elem_type(x) not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            raise ValueError(f"{x!r} is no tensor of float or double")
        results = function(_Step(build, x), *others)
        for result, output in zip(results, node.output[number::tensors], strict=True):
            if output:
                build.add("Identity", result, output=output)
    return build.nodes

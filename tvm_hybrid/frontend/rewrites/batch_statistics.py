"""BatchNormalization in training mode: by the mean and variance of its input.

Before

    y, m, v = BatchNormalization(x, gamma, beta, running_mean, running_variance, training_mode=1)

After

    centred = Sub(x, ReduceMean(x, axes=[0, 2, 3]))
    variance = ReduceMean(Mul(centred, centred), axes=[0, 2, 3])
    y = Add(Mul(Div(centred, Sqrt(Add(variance, epsilon))), gamma), beta)
    m = Add(Mul(running_mean, momentum), Mul(ReduceMean(x), 1 - momentum))    # and so v

Everything is computed in float32, or in float64 where an input or a statistic is float64.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from ..node_builder import NodeBuilder, attributes_of


def normalize_by_batch(build: NodeBuilder, node: onnx.NodeProto, shape: tuple[int, ...]) -> None:
    """Adds the nodes of a BatchNormalization in training mode with five inputs."""
    attributes = attributes_of(node)
    elem_types = [build.graph.elem_type(name) for name in node.input]
    double = TensorProto.DOUBLE in elem_types
    code, dtype = (TensorProto.DOUBLE, np.float64) if double else (TensorProto.FLOAT, np.float32)
    x, gamma, beta, *running = (build.add("Cast", name, to=code) for name in node.input)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    mean = build.reduce("ReduceMean", x, axes)
    centred = build.add("Sub", x, mean)
    variance = build.reduce("ReduceMean", build.add("Mul", centred, centred), axes)
    steady = build.add("Add", variance, build.constant(attributes.get("epsilon", 1e-5), dtype))
    normal = build.add("Div", centred, build.add("Sqrt", steady))
    channels = [-1, *(1 for _ in shape[2:])]
    scaled = build.add("Mul", normal, build.reshape(gamma, channels))
    shifted = build.add("Add", scaled, build.reshape(beta, channels))
    build.add("Cast", shifted, output=node.output[0], to=elem_types[0])
    momentum = attributes.get("momentum", 0.9)
    shares = build.constant(momentum, dtype), build.constant(1 - momentum, dtype)
    for position, old, new in zip((1, 2), running, (mean, variance), strict=True):
        if position >= len(node.output) or not node.output[position]:
            continue
        kept = build.add("Mul", old, shares[0])
        moved = build.add("Mul", build.reshape(new, [shape[1]]), shares[1])
        total = build.add("Add", kept, moved)
        build.add("Cast", total, output=node.output[position], to=elem_types[3])

"""ConvTranspose with every attribute against ONNX Runtime, in one model."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tvm_hybrid.frontend import import_onnx

from .models import f32, make_model, onnxruntime_run, random, run_imported

CASES: list[dict[str, Any]] = [
    {"strides": [2, 2]},
    {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2], "group": 2},
    {"strides": [2, 3], "dilations": [2, 3], "group": 4, "pads": [2, 1, 0, 3]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER", "dilations": [2, 2]},
    {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    {"strides": [3, 2], "auto_pad": "VALID", "output_padding": [1, 1]},
    {"strides": [2, 2], "output_shape": [10, 12]},
    {"strides": [2, 2], "output_shape": [10, 13], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 2], "output_shape": [10, 13], "auto_pad": "SAME_LOWER"},
    {"strides": [2, 2], "output_shape": [12, 13]},
    {"strides": [2, 2], "output_shape": [10, 12], "output_padding": [1, 1]},
]


def test_every_attribute() -> None:
    nodes, outputs, constants = [], [], {}
    for number, attributes in enumerate(CASES):
        constants[f"w{number}"] = random(4, 3, 3, 2, seed=number)
        constants[f"b{number}"] = random(3 * attributes.get("group", 1), seed=number + 100)
        names = ["x", f"w{number}", f"b{number}"]
        nodes.append(helper.make_node("ConvTranspose", names, [f"y{number}"], **attributes))
        outputs.append(f32(f"y{number}", *[None] * 4))
    model = make_model(nodes, [f32("x", 2, 4, 5, 6)], outputs, constants)
    feeds = {"x": random(2, 4, 5, 6)}
    wanted = onnxruntime_run(model, feeds)
    for attributes, got, exact in zip(
        CASES, run_imported(import_onnx(model), feeds), wanted, strict=True
    ):
        assert got.shape == exact.shape, attributes
        # K = 24 products of values below 4, in other orders: 2 K eps times the sum of their
        # magnitudes.
        bound = 2 * 24 * np.finfo(np.float32).eps * 24 * 16
        assert np.abs(got - exact).max() <= bound, attributes

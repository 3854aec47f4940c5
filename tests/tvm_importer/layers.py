"""Models of layers: products, convolutions, pools, normalisations, quantisation, images."""

from __future__ import annotations

from tests.onnx_builder import CONTRIB

from .graphs import F32, I8, I32, U8, Graph


def products() -> Graph:
    """Products with weights and of two inputs, with epilogues."""
    g = Graph()
    x, y, batch = g.floats(7, 20), g.floats(20, 17), g.floats(2, 3, 5, 8)
    weight, bias = g.weight(20, 17), g.weight(17)
    g.result("MatMul", x, y)
    g.result("MatMul", g.floats(20), weight)
    g.result("MatMul", batch, g.floats(3, 8, 6))
    g.result("Gemm", x, weight, bias, alpha=0.5, beta=2.0)
    g.result("Gemm", y, weight, transA=1)
    g.result("Gemm", x, g.weight(9, 20), g.weight(7, 1), transB=1)
    for equation in ("ij,jk->ki", "ij,jk->"):
        g.result("Einsum", x, y, equation=equation)
    g.result("Relu", g.builder.node("Add", g.builder.node("MatMul", x, weight), bias))
    a = g.integers(5, 12, dtype=U8, low=0, high=256)
    b = g.integers(12, 6, dtype=I8, low=-128, high=128)
    zeros = g.builder.constant(130, U8), g.builder.constant(-3, I8)
    g.result("MatMulInteger", a, b, *zeros, dtype=I32)
    return g


def convolutions() -> Graph:
    """Convolutions of one, two and three dimensions, and pools of their results."""
    g = Graph()
    line, image, volume = g.floats(2, 4, 11), g.floats(1, 4, 9, 8), g.floats(1, 2, 5, 6, 4)
    g.result("Conv", line, g.weight(6, 4, 3), g.weight(6), pads=[1, 1], strides=[2])
    g.result("Conv", image, g.weight(6, 4, 3, 3), auto_pad="SAME_UPPER")
    g.result("Conv", image, g.weight(6, 2, 3, 3), group=2, dilations=[2, 1])
    g.result("Conv", image, g.weight(8, 1, 3, 3), g.weight(8), group=4, pads=[1, 0, 1, 2])
    g.result("Conv", volume, g.weight(3, 2, 2, 3, 2), g.weight(3))
    g.result("ConvTranspose", line, g.weight(4, 3, 3), strides=[2], output_padding=[1])
    g.result("ConvTranspose", image, g.weight(4, 2, 3, 2), g.weight(2), pads=[1, 0, 1, 1])
    for x, rank in ((line, 1), (image, 2), (volume, 3)):
        window = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank}
        g.result("MaxPool", x, **window)
        g.result("AveragePool", x, **window, count_include_pad=1)
        g.result("LpPool", x, kernel_shape=[2] * rank, p=2)
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        g.result(op, image)
    return g


def norms() -> Graph:
    """Normalisations, and fused layers of transformers."""
    g = Graph()
    x, rows = g.floats(2, 4, 5, 3), g.floats(2, 6, 32)
    deviation = g.builder.constant([0.5, 1, 2, 3], F32)
    g.result("BatchNormalization", x, g.weight(4), g.weight(4), g.weight(4), deviation)
    g.result("InstanceNormalization", x, g.weight(4), g.weight(4))
    g.result("LayerNormalization", x, g.weight(3), g.weight(3))
    g.result("LayerNormalization", x, g.weight(5, 3), g.weight(5, 3), axis=2, epsilon=0.01)
    g.result("MeanVarianceNormalization", x)
    g.result("LRN", x, size=3, alpha=0.1, beta=0.6, bias=1.5)
    g.result("BiasGelu", rows, g.weight(32), domain=CONTRIB)
    g.result("FastGelu", rows, g.weight(32), domain=CONTRIB)
    scale, shift, bias = g.weight(32), g.weight(32), g.weight(32)
    residual = g.floats(2, 6, 32)
    g.result("SkipLayerNormalization", rows, residual, scale, shift, bias, domain=CONTRIB)
    weight = g.weight(32, 96)
    g.result("Attention", rows, weight, g.weight(96), domain=CONTRIB, num_heads=4)
    return g


def quantized() -> Graph:
    """Quantisation per tensor and per axis, with and without zero points, and of a scalar."""
    g = Graph()
    x, scale = g.floats(4, 6), g.builder.constant(0.021, F32)
    scales = g.builder.constant([0.01, 0.02, 0.03, 0.015], F32)
    zeros = g.builder.constant([3, 128, 0, 255], U8)
    g.result("QuantizeLinear", x, scale, dtype=U8)
    g.result("QuantizeLinear", x, scale, g.builder.constant(-5, I8), dtype=I8)
    g.result("QuantizeLinear", x, scales, zeros, dtype=U8, axis=0)
    g.result("QuantizeLinear", g.floats(), scale, g.builder.constant(100, U8), dtype=U8)
    bytes_ = g.integers(4, 6, dtype=U8, low=0, high=256)
    g.result("DequantizeLinear", bytes_, scales, zeros, axis=0)
    g.result("DequantizeLinear", g.integers(4, 6), scale)
    g.results("DynamicQuantizeLinear", [U8, F32, U8], g.floats(5, 3))
    return g


def images() -> Graph:
    """Resizing, sampling and cropping of images."""
    g = Graph()
    x, scales = g.floats(1, 2, 6, 5), g.builder.constant([1, 1, 2, 2], F32)
    for mode in ("nearest", "linear", "cubic"):
        g.result("Resize", x, "", scales, mode=mode)
    g.result("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric")
    grid = g.floats(1, 3, 4, 2, low=-1, high=1)
    for mode in ("linear", "nearest"):
        for padding in ("zeros", "border"):
            g.result("GridSample", x, grid, mode=mode, padding_mode=padding)
    g.result("AffineGrid", g.floats(1, 2, 3), g.numbers(1, 2, 3, 4), align_corners=1)
    boxes = g.builder.constant([[0, 0, 3, 4], [1, 1, 4, 5]], F32)
    pooled = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    g.result("RoiAlign", x, boxes, g.numbers(0, 0), mode="avg", **pooled)
    return g


LAYERS = {each.__name__: each for each in (products, convolutions, norms, quantized, images)}

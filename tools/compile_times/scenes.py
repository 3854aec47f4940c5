"""Text in pictures, salient objects, segmentation: PP-OCR, IS-Net, SegFormer, MobileViT."""

from __future__ import annotations

import functools

from .attention import attention, mlp
from .graph import Form, Model
from .images import FLOAT, HALF, INT8, Image, Net

SWISH = "PaddleSwish"


def text_detection(form: Form) -> Model:
    """Where text is: depthwise convolutions, a pyramid with gates, transposed convolutions.

    The form of PP-OCR's detectors: [batch, 3, height, width] -> [batch, 1, height, width].
    """
    net = Net(form)
    x = net.conv(net.image(3, 320, 320), 16, 3, SWISH, 2)
    levels = []
    blocks = (
        [(3, 1, 24), (3, 2, 48), (3, 1, 48)],
        [(3, 2, 96), (3, 1, 96)],
        [(3, 2, 192), *[(5, 1, 192)] * 4],
        [(5, 2, 384), *[(5, 1, 384)] * 2],
    )
    for level, stage in enumerate(blocks):
        for kernel, stride, channels in stage:
            x = net.depthwise(x, kernel, SWISH, stride)
            if level == 3:
                x = net.excite(x, x.channels // 4)
            x = net.conv(x, channels, 1, SWISH)
        levels.append(x)
    sides = []
    for x in levels:
        y = net.conv(x, 96, 1)
        sides.append(net.add(y, net.excite(y, 24)))
    for place in (2, 1, 0):
        sides[place] = net.add(sides[place], net.enlarge(sides[place + 1]))
    parts = []
    for place, x in enumerate(sides):
        y = net.conv(x, 24, 3)
        y = net.add(y, net.excite(y, 6))
        parts.append(net.enlarge(y, 1 << place) if place else y)
    x = net.conv(net.concat(*parts[::-1]), 24, 3, "Relu")
    x = net.enlarging_conv(x, 24, "Relu")
    x = net.enlarging_conv(x, 1 + form.head, "Sigmoid")
    net.output(x.name, "shares")
    return net.model()


def text_recognition(form: Form) -> Model:
    """What a line of text says: strides of height alone, then two blocks of attention.

    The form of PP-OCR's recognisers: [batch, 3, 48, width] -> [batch, width / 8, characters].
    """
    net = Net(form)
    x = net.conv(net.image(3, 48, 320, "h"), 16, 3, SWISH, 2)
    widths = (32, 64, 64, 128, 128, *[240] * 5, 480, 480)
    strides = {1: (2, 1), 3: (2, 1), 5: (1, 2), 10: (2, 1)}
    for place, channels in enumerate(widths):
        kernel = 3 if place < 6 else 5
        x = net.depthwise(x, kernel, SWISH, strides.get(place, 1))
        if place >= 10:
            x = net.excite(x, x.channels // 4)
        x = net.conv(x, channels, 1, SWISH)
    height, width = x.size
    name = net.node("AveragePool", x.name, kernel_shape=[3, 2], strides=[3, 2])
    before = Image(name, x.channels, (height // 3, width // 2))
    x = net.conv(net.conv(before, 60, (1, 3), "Swish"), 120, 1, "Swish")
    rows = net.rows(x)
    for _ in range(2):
        y = net.layer_norm(rows, 120)
        rows = net.node("Add", rows, attention(net, y, 120, 8))
        rows = net.node("Add", rows, mlp(net, net.layer_norm(rows, 120), 120, 240, "Swish"))
    x = net.image_of(net.layer_norm(rows, 120), x, 120)
    x = net.conv(net.conv(x, 480, 1, "Swish"), 60, (1, 3), "Swish")
    x = net.conv(net.concat(net.conv(before, 60, 1), x), 120, 1, "Swish")
    lines = net.transpose(net.node("Squeeze", x.name, net.ints(2)), 0, 2, 1)
    net.output(net.node("Softmax", net.linear(lines, 120, 6625 + form.head), axis=-1), "shares")
    return net.model()


def _salient_block(net: Net, x: Image, inner: int, outer: int, depth: int) -> Image:
    """A U of `depth` levels in a residual; without pools, by dilation, if `depth` is 0."""

    def conv(x: Image, channels: int, dilation: int = 1) -> Image:
        return net.conv(x, channels, 3, "Relu", dilation=dilation)

    x = conv(x, outer)
    if not depth:
        first = conv(x, inner)
        second = conv(first, inner, 2)
        third = conv(second, inner, 4)
        y = conv(net.concat(conv(third, inner, 8), third), inner, 4)
        y = conv(net.concat(conv(net.concat(y, second), inner, 2), first), outer)
        return net.add(y, x)
    levels = [conv(x, inner)]
    for _ in range(depth - 2):
        levels.append(conv(net.pool(levels[-1], 2, 2, ceil=1), inner))
    y = conv(levels[-1], inner, 2)
    for level, each in enumerate(levels[::-1]):
        y = net.enlarge_to(y, each) if level else y
        y = conv(net.concat(y, each), outer if level == depth - 2 else inner)
    return net.add(y, x)


def salient_objects(form: Form, precision: str = FLOAT) -> Model:
    """Which pixels are of the foreground, at 1024x1024: U-Nets of U-Nets.

    The form of IS-Net, a successor of U2-Net, with fewer levels.
    """
    net = Net(form, precision)
    source = net.image(3, 1024, 1024, "hw")
    x = net.conv(source, 64, 3, stride=2)
    downs = [(32, 64, 6), (32, 128, 5), (64, 256, 5), (128, 512, 0)]
    levels: list[Image] = []
    for inner, outer, depth in downs:
        x = net.pool(x, 2, 2, ceil=1) if levels else x
        x = _salient_block(net, x, inner, outer, depth)
        levels.append(x)
    for level, (inner, outer, depth) in zip(
        levels[-2::-1], [(64, 128, 5), (32, 64, 5), (16, 64, 6)], strict=True
    ):
        both = net.concat(net.enlarge_to(x, level), level)
        x = _salient_block(net, both, inner, outer, depth)
    y = net.enlarge_to(net.conv(x, 1 + form.head, 3), source)
    name = net.node("Sigmoid", y.name)
    net.output(net.node("Cast", name, to=1) if precision == HALF else name, "shares")
    return net.model()


salient_objects_f16 = functools.partial(salient_objects, precision=HALF)
salient_objects_int8 = functools.partial(salient_objects, precision=INT8)


def segformer(form: Form) -> Model:
    """SegFormer-B0 at 256x256: attention to fewer rows, depthwise convolutions in perceptrons."""
    net = Net(form)
    source = net.image(3, 256, 256)
    x, levels = source, []
    for place, (width, heads, fewer) in enumerate(
        ((32, 1, 8), (64, 2, 4), (160, 5, 2), (256, 8, 1))
    ):
        x = net.conv(x, width, 3 if place else 7, stride=2 if place else 4)
        rows = net.layer_norm(net.rows(x), width)
        for _ in range(2):
            y = net.layer_norm(rows, width)
            others = y
            if fewer > 1:
                image = net.image_of(y, x, width)
                image = net.conv(image, width, fewer, stride=fewer, pads=[0] * 4)
                others = net.layer_norm(net.rows(image), width)
            rows = net.node("Add", rows, attention(net, y, width, heads, others))
            y = net.linear(net.layer_norm(rows, width), width, 4 * width)
            y = net.gelu(net.rows(net.depthwise(net.image_of(y, x, 4 * width), 3)))
            rows = net.node("Add", rows, net.linear(y, 4 * width, width))
        x = net.image_of(net.layer_norm(rows, width), x, width)
        levels.append(x)
    parts = []
    for x in levels:
        narrow = net.image_of(net.linear(net.rows(x), x.channels, 256), x, 256)
        parts.append(net.enlarge_to(narrow, levels[0]))
    x = net.conv(net.concat(*parts[::-1]), 256, 1, "Relu")
    net.output(net.conv(x, 150 + form.head, 1).name, "scores")
    return net.model()


def mobilevit(form: Form) -> Model:
    """MobileViT's smallest form at 256x256: bottlenecks, and attention among pixels of patches."""
    net = Net(form)
    x = net.conv(net.image(3, 256, 256, "hw"), 16, 3, "Swish", 2)

    def bottleneck(x: Image, channels: int, stride: int = 1) -> Image:
        y = net.conv(x, 2 * x.channels, 1, "Swish")
        y = net.conv(net.depthwise(y, 3, "Swish", stride), channels, 1)
        return net.add(x, y) if stride == 1 and channels == x.channels else y

    x = bottleneck(x, 16)
    for place in range(3):
        x = bottleneck(x, 24, 1 if place else 2)
    for channels, width, count in ((48, 64, 2), (64, 80, 4), (80, 96, 3)):
        x = bottleneck(x, channels, 2)
        y = net.conv(net.conv(x, channels, 3, "Swish"), width, 1)
        height, breadth = (n // 2 for n in x.size)
        batch = net.same(y.name, 0, net.batch())
        patches = net.reshape(y.name, -1, 2, breadth, 2)
        patches = net.reshape(net.transpose(patches, 0, 2, 1, 3), batch, width, height * breadth, 4)
        rows = net.reshape(net.transpose(patches, 0, 3, 2, 1), -1, height * breadth, width)
        for _ in range(count):
            rows = net.node("Add", rows, attention(net, net.layer_norm(rows, width), width, 4))
            z = mlp(net, net.layer_norm(rows, width), width, 2 * width, "Swish")
            rows = net.node("Add", rows, z)
        rows = net.reshape(net.layer_norm(rows, width), batch, 4, height * breadth, width)
        patches = net.reshape(net.transpose(rows, 0, 3, 2, 1), -1, breadth, 2, 2)
        name = net.reshape(net.transpose(patches, 0, 2, 1, 3), batch, width, *x.size)
        y = net.conv(Image(name, width, x.size), channels, 1, "Swish")
        x = net.conv(net.concat(x, y), channels, 3, "Swish")
    net.classes(net.conv(x, 320, 1, "Swish"), 1000)
    return net.model()

"""Text in pictures, salient objects, segmentation: PP-OCR, IS-Net, SegFormer, MobileViT."""

from __future__ import annotations

import functools

import numpy as np

from .encoders import attention, mlp
from .graph import Form, Model
from .images import FLOAT, HALF, INT8, Image, Net

SWISH = "PaddleSwish"


def text_detection(form: Form) -> Model:
    """Finds text: depthwise convolutions, a pyramid with gates, transposed convolutions.

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
    """Reads a line of text: convolutions that stride in height only, then two attention blocks.

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
    """A residual block with a U-Net of `depth` levels or, if 0, with dilation instead of pools."""

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
    """Finds foreground pixels at 1024x1024: U-Nets of U-Nets.

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


# Classifiers and a detector: ResNet, SqueezeNet, ShuffleNet, YOLO.


def resnet50(form: Form) -> Model:
    """ResNet-50 at 224x224, batch normalisation folded."""
    net = Net(form)
    x = net.conv(net.image(3, 224, 224), 64, 7, "Relu", 2)
    x = net.pool(x, 3, 2, 1)
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for place in range(count):
            stride = 2 if stage and not place else 1
            y = net.conv(net.conv(x, width, 1, "Relu"), width, 3, "Relu", stride)
            y = net.conv(y, 4 * width, 1)
            x = net.conv(x, 4 * width, 1, stride=stride) if not place else x
            x = net.op("Relu", net.add(y, x))
    net.classes(x, 1000)
    return net.model()


def squeezenet(form: Form) -> Model:
    """SqueezeNet 1.1 at 224x224."""
    net = Net(form)
    x = net.pool(net.conv(net.image(3, 224, 224), 64, 3, "Relu", 2, pads=[0] * 4), 3, 2)
    for place, narrow in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        x = net.conv(x, narrow, 1, "Relu")
        wide = 4 * narrow
        x = net.concat(net.conv(x, wide, 1, "Relu"), net.conv(x, wide, 3, "Relu"))
        if place in (1, 3):
            x = net.pool(x, 3, 2)
    x = net.conv(x, 1000 + form.head, 1, "Relu")
    net.output(net.node("Softmax", net.node("Flatten", net.node("GlobalAveragePool", x.name))))
    return net.model()


def shufflenet(form: Form) -> Model:
    """ShuffleNet of four groups at 224x224: grouped 1x1, channels shuffled, depthwise."""
    net, groups = Net(form), 4
    x = net.conv(net.image(3, 224, 224, "hw"), 24, 3, "Relu", 2, norm=True)
    x = net.pool(x, 3, 2, 1)
    for width, count in ((272, 4), (544, 8), (1088, 4)):
        for place in range(count):
            stride = 1 if place else 2
            outer = width if place else width - x.channels
            inner = width // 4
            y = net.conv(x, inner, 1, "Relu", groups=1 if x.channels == 24 else groups, norm=True)
            batch = net.same(y.name, 0, net.batch())
            parts = net.reshape(y.name, batch, groups, inner // groups, *y.size)
            mixed = net.transpose(parts, 0, 2, 1, 3, 4)
            y = y._replace(name=net.reshape(mixed, batch, inner, *y.size))
            y = net.conv(y, inner, 3, stride=stride, groups=inner, norm=True)
            y = net.conv(y, outer, 1, groups=groups, norm=True)
            if place:
                x = net.op("Relu", net.add(x, y))
            else:
                x = net.op("Relu", net.concat(net.pool(x, 3, 2, 1, "AveragePool"), y))
    net.classes(x, 1000)
    return net.model()


def yolo(form: Form) -> Model:
    """A detector of YOLOv8's smallest form at 320x320: C2f, SPPF, two-way neck, boxes by DFL."""
    net = Net(form)

    def conv(x: Image, channels: int, kernel: int, stride: int = 1) -> Image:
        return net.conv(x, channels, kernel, "Swish", stride)

    def c2f(x: Image, channels: int, count: int, shortcut: bool) -> Image:
        half = channels // 2
        x = conv(x, channels, 1)
        left, right = net.nodes("Split", 2, x.name, net.ints(half, half), axis=1)
        parts = [Image(name, half, x.size) for name in (left, right)]
        for _ in range(count):
            y = conv(conv(parts[-1], half, 3), half, 3)
            parts.append(net.add(parts[-1], y) if shortcut else y)
        return conv(net.concat(*parts), channels, 1)

    x = conv(net.image(3, 320, 320), 16, 3, 2)
    x = c2f(conv(x, 32, 3, 2), 32, 1, True)
    small = c2f(conv(x, 64, 3, 2), 64, 2, True)
    middle = c2f(conv(small, 128, 3, 2), 128, 2, True)
    x = conv(c2f(conv(middle, 256, 3, 2), 256, 1, True), 128, 1)
    pools = [x]
    for _ in range(3):
        pools.append(net.pool(pools[-1], 5, 1, 2))
    deep = conv(net.concat(*pools), 256, 1)
    middle = c2f(net.concat(net.enlarge(deep), middle), 128, 1, False)
    small = c2f(net.concat(net.enlarge(middle), small), 64, 1, False)
    middle = c2f(net.concat(conv(small, 64, 3, 2), middle), 128, 1, False)
    deep = c2f(net.concat(conv(middle, 128, 3, 2), deep), 256, 1, False)

    classes, bins = 18 + form.head, 16
    maps = []
    for x in (small, middle, deep):
        box = net.conv(conv(conv(x, 64, 3), 64, 3), 4 * bins, 1)
        score = net.conv(conv(conv(x, 64, 3), 64, 3), classes, 1)
        maps.append(net.concat(box, score))
    batch = net.same(maps[0].name, 0, net.batch())
    flat = [net.reshape(x.name, batch, 4 * bins + classes, -1) for x in maps]
    both = net.node("Concat", *flat, axis=2)
    distance, sure = net.nodes("Split", 2, both, net.ints(4 * bins, classes), axis=1)
    split = net.reshape(distance, net.same(distance, 0, net.batch()), 4, bins, -1)
    shares = net.node("Softmax", net.transpose(split, 0, 2, 1, 3), axis=1)
    numbers = net.constant(np.arange(bins).reshape(1, bins, 1, 1))
    mean = net.node("Conv", shares, numbers)
    distances = net.reshape(mean, net.same(mean, 0, net.batch()), 4, -1)
    anchors, strides = _anchors(net, maps)
    low, high = (net.slice(distances, 1, start, start + 2) for start in (0, 2))
    first, last = net.node("Sub", anchors, low), net.node("Add", anchors, high)
    centre = net.node("Div", net.node("Add", first, last), net.constant(2.0))
    whole = net.node("Concat", centre, net.node("Sub", last, first), axis=1)
    found = [net.node("Mul", whole, strides), net.node("Sigmoid", sure)]
    net.output(net.node("Concat", *found, axis=1), "found")
    return net.model()


def _anchors(net: Net, images: list[Image]) -> tuple[str, str]:
    """Centres of pixels [1, 2, pixels] and strides [1, pixels]; computed if sizes are dynamic."""
    if not net.form.dynamic:
        grids = [np.stack(np.meshgrid(*(np.arange(n) + 0.5 for n in x.size[::-1]))) for x in images]
        centres = np.concatenate([grid.reshape(2, -1) for grid in grids], 1)[None]
        steps = [np.full((1, grid[0].size), 8 << place) for place, grid in enumerate(grids)]
        return net.constant(centres), net.constant(np.concatenate(steps, 1))
    zero, one, half = (net.constant(each) for each in (0.0, 1.0, 0.5))
    planes, strides = [], []
    for place, x in enumerate(images):
        counts = [net.dim(x.name, axis) for axis in (2, 3)]
        lines = []
        for count in counts:  # Range of floats, as exporters write torch.arange of a float type
            end = net.node("Squeeze", net.node("Cast", count, to=1), net.ints(0))
            lines.append(net.node("Add", net.node("Range", zero, end, one), half))
        whole = net.node("Concat", *(net.node("Shape", line) for line in lines), axis=0)
        rows, columns = (
            net.node("Expand", net.reshape(line, *form), whole)
            for line, form in zip(lines, ((-1, 1), (1, -1)), strict=True)
        )
        pairs = [net.node("Unsqueeze", each, net.ints(-1)) for each in (columns, rows)]
        planes.append(net.reshape(net.node("Concat", *pairs, axis=-1), -1, 2))
        pixels = net.node("Concat", net.node("Mul", *counts), net.ints(1), axis=0)
        nothing = net.node("ConstantOfShape", pixels)
        strides.append(net.node("Add", nothing, net.constant(float(8 << place))))
    places = net.transpose(net.node("Concat", *planes, axis=0), 1, 0)
    strides_of = net.transpose(net.node("Concat", *strides, axis=0), 1, 0)
    return net.node("Unsqueeze", places, net.ints(0)), strides_of

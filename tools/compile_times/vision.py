"""Classifiers and a detector: ResNet, SqueezeNet, ShuffleNet, YOLO."""

from __future__ import annotations

import numpy as np

from .graph import Form, Model
from .images import Image, Net


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
    """[1, 2, pixels] centres of pixels and [1, pixels] strides; computed where sizes are open."""
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

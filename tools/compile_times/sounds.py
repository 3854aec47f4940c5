"""Models of signals (pitch and notes of music, voices, events), and convolutions from these."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graph import CONTRIB, Form, Graph, Model, Part
from .images import Image, Net


def pitch(form: Form) -> Model:
    """Spectra of three windows by factored Fourier transforms, then long 1-D dilated convolutions.

    The form of swift-f0: [1, samples] -> [1, frames].
    """
    net, hop, bands = Net(form), 256, 128
    count = 16000
    audio = net.input("audio", (1, net.size("samples", count)))
    frames = count // hop if not form.dynamic else net.node("Div", net.dim(audio, 1), net.ints(hop))
    spectra = [_spectrum(net, audio, frames, *each) for each in ((32, 32), (64, 32), (32, 16))]
    bands_of = net.node("Concat", *spectra, axis=1)
    x = Image(bands_of, 3, (bands, count // hop))
    x = net.conv(x, 12, 3, "Relu")
    blocks = (((7, 3), 1), ((7, 1), 17), ((5, 1), 27), ((3, 1), 40), ((3, 1), 48), ((7, 3), 2))
    for kernel, dilation in blocks:
        y = _tall_conv(net, _tall_conv(net, x, 12, kernel, dilation, "Relu"), 12, kernel, dilation)
        x = net.op("Relu", net.add(x, y))
    x = x._replace(name=net.slice(x.name, 2, 0, 96), size=(96, x.size[1]))
    x = net.conv(x, 4, 3, "Relu", pads=[1, 1, 0, 1])
    x = x._replace(size=(95, x.size[1]))
    peaks = net.node("ReduceMax", _tall_conv(net, x, 4, (5, 1), 1).name, axes=[2], keepdims=0)
    mean = net.node("ReduceMean", bands_of, axes=[1, 2], keepdims=1)
    both = net.node("Concat", peaks, net.node("Squeeze", mean, net.ints(1)), axis=1)
    inner = 16 + form.head
    voiced = _signal_conv(net, _signal_conv(net, both, 5, inner, 3, "Relu"), inner, 1, 1)
    scores = net.node("Squeeze", net.conv(x, 1, 1).name, net.ints(1))
    shares = net.node("Softmax", net.transpose(scores, 0, 2, 1), axis=-1)
    octaves = net.constant(np.linspace(4, 7, 95))
    mean = net.node("ReduceSum", net.node("Mul", shares, octaves), net.ints(-1), keepdims=0)
    net.output(net.node("Exp", mean), "pitch")
    net.output(net.node("Sigmoid", net.node("Squeeze", voiced, net.ints(1))), "voiced")
    return net.model()


def _spectrum(net: Net, audio: str, frames: int | str, rows: int, columns: int) -> str:
    """[1, 1, bands, frames]: the logarithm of a spectrum in bands of windows of rows * columns."""
    window, hop, bands = rows * columns, 256, 128
    pads = net.ints(0, (window - hop) // 2, 0, window - hop)
    lines = net.reshape(net.node("Pad", audio, pads), -1, hop)
    parts = []
    for start in range(window // hop):
        if isinstance(frames, int):
            parts.append(net.slice(lines, 0, start, frames + start))
        else:
            end = net.node("Add", frames, net.ints(start))
            parts.append(net.node("Slice", lines, net.ints(start), end, net.ints(0)))
    joined = net.node("Mul", net.node("Concat", *parts, axis=1), net.constant(np.hanning(window)))
    grid = net.reshape(joined, -1, rows, columns)

    def waves(first: int, second: int, period: int) -> tuple[str, str]:
        angles = np.outer(np.arange(first), np.arange(second)) * (2 * np.pi / period)
        return net.constant(np.cos(angles)), net.constant(-np.sin(angles))

    def product(op: str, x: tuple[str, str], y: tuple[str, str]) -> tuple[str, str]:
        real, imaginary = zip(x, y, strict=True), zip(x, y[::-1], strict=True)
        a, b = (net.node(op, *pair) for pair in real)
        c, d = (net.node(op, *pair) for pair in imaginary)
        return net.node("Sub", a, b), net.node("Add", c, d)

    inner = waves(rows, rows, rows)
    found = net.node("MatMul", inner[0], grid), net.node("MatMul", inner[1], grid)
    found = product("Mul", found, waves(rows, columns, window))
    found = product("MatMul", found, waves(columns, columns, columns))
    power = net.node("Add", *(net.node("Mul", each, each) for each in found))
    flat = net.node("Reshape", net.transpose(power, 0, 2, 1), net.ints(0, -1))
    size = net.node(
        "Sqrt", net.node("Unsqueeze", net.slice(flat, 1, 0, window // 2 + 1), net.ints(0))
    )
    weights = np.abs(net.rng.standard_normal((window // 2 + 1, bands)))
    sums = net.node("MatMul", size, net.constant(weights))
    logs = net.node("Log", net.node("Add", sums, net.constant(1e-8)))
    return net.node("Unsqueeze", net.transpose(logs, 0, 2, 1), net.ints(1))


def _tall_conv(
    net: Net, x: Image, channels: int, kernel: tuple[int, int], dilation: int, activation: str = ""
) -> Image:
    """A convolution that is dilated along the height only."""
    pad, beside = kernel[0] // 2 * dilation, kernel[1] // 2
    w = net.random(
        channels, x.channels, *kernel, spread=(x.channels * kernel[0] * kernel[1]) ** -0.5
    )
    y = net.node(
        "Conv",
        x.name,
        w,
        net.vector(channels, 0.1),
        pads=[pad, beside] * 2,
        dilations=[dilation, 1],
    )
    return Image(net.activate(y, activation), channels, x.size)


def _signal_conv(
    net: Net,
    x: str,
    inner: int,
    outer: int,
    kernel: int,
    activation: str = "",
    stride: int = 1,
    dilation: int = 1,
) -> str:
    """A 1-D convolution: [batch, inner, length] -> [batch, outer, length / stride]."""
    w = net.random(outer, inner, kernel, spread=(inner * kernel) ** -0.5)
    attributes: dict[str, Any] = {"strides": [stride], "dilations": [dilation]}
    pads = [kernel // 2 * dilation] * 2
    y = net.node("Conv", x, w, net.vector(outer, 0.1), pads=pads, **attributes)
    return net.activate(y, activation)


def notes(form: Form) -> Model:
    """Nine octaves of a constant-Q transform, harmonics stacked, 3x39 windows.

    The form of basic-pitch: [batch, 43844, 1] -> contours, notes and onsets.
    """
    net = Net(form)
    x = net.input("audio", (net.batch(), 43844, 1))
    batch = -1 if form.dynamic else form.batch
    signal = net.reshape(x, batch, 1, 43844)
    sides = net.random(36, 1, 1, 256, spread=1 / 16), net.random(36, 1, 1, 256, spread=1 / 16)
    low_pass, zero = net.random(1, 1, 1, 256, spread=1 / 16), net.constant([0.0])
    none = net.constant(np.zeros(36))
    octaves = ""
    for place in range(9):
        stride = 256 >> place
        padded = net.node("Pad", signal, net.ints(0, 0, 128, 0, 0, 128), mode="reflect")
        wide = net.node("Unsqueeze", padded, net.ints(2))
        pair = []
        for side, weight in enumerate(sides):
            y = net.node("Conv", wide, weight, none, strides=[1, stride])
            y = net.node("Neg", y) if side else y
            y = net.reshape(net.transpose(y, 0, 2, 3, 1), batch, 172, 36)
            pair.append(net.node("Unsqueeze", y, net.ints(3)))
        octave = net.node("Concat", *pair, axis=3)
        octaves = net.node("Concat", octave, octaves, axis=2) if octaves else octave
        padded = net.node("Pad", signal, net.ints(0, 0, 127, 0, 0, 127))
        wide = net.node("Unsqueeze", padded, net.ints(2))
        if place < 8:
            halved = net.node("Conv", wide, low_pass, zero, strides=[1, 2])
            signal = net.node("Squeeze", halved, net.ints(2))
    power = net.transpose(net.slice(octaves, 2, -309, 2**31), 0, 2, 1, 3)
    power = net.node("Mul", power, net.constant(net.rng.uniform(0.5, 1, (309, 1, 1))))
    sums = net.node("ReduceSum", net.node("Mul", power, power), net.ints(-1), keepdims=0)
    size = net.transpose(net.node("Sqrt", sums), 0, 2, 1)
    logs = net.node("Log", net.node("Add", net.node("Mul", size, size), net.constant(1e-10)))
    above = net.node("Sub", logs, net.node("ReduceMin", logs, axes=[1, 2], keepdims=1))
    share = net.node("Div", above, net.node("ReduceMax", above, axes=[1, 2], keepdims=1))
    x = net.node("Unsqueeze", share, net.ints(-1))
    lower = net.node("Pad", net.slice(x, 2, 0, -36), net.ints(0, 0, 36, 0, 0, 0, 0, 0))
    shifted = [lower, x]
    for shift in (36, 57, 72, 84, 93, 101):
        pads = net.ints(0, 0, 0, 0, 0, 0, shift, 0)
        shifted.append(net.node("Pad", net.slice(x, 2, shift, 2**31), pads))
    stack = net.slice(net.node("Concat", *shifted, axis=3), 2, 0, 264)
    image = Image(net.transpose(stack, 0, 3, 1, 2), 8, (172, 264))
    onsets = net.conv(image, 32, 5, "Relu", (1, 3), pads=[2, 1, 2, 1])
    contours = net.conv(net.conv(image, 8, (3, 39), "Relu"), 1, 5, "Sigmoid")
    sounding = net.conv(contours, 32, 7, "Relu", (1, 3), pads=[3, 2, 3, 2])
    sounding = net.conv(sounding, 1, (7, 3), "Sigmoid")
    onsets = net.conv(net.concat(sounding, onsets), 1 + form.head, 3, "Sigmoid")
    for name, each in (("contours", contours), ("notes", sounding), ("onsets", onsets)):
        net.output(each.name, name)
    return net.model()


def conv_long_rows(form: Form) -> Model:
    """One convolution, [1, 8, 172, 264] by [8, 8, 3, 39]."""
    net = Net(form)
    net.output(net.conv(net.image(8, 172, 264, "hw"), 8 + form.head, (3, 39)).name)
    return net.model()


def conv_halving(form: Form) -> Model:
    """One convolution of signals, [batch, 1, 1, 44098] by [1, 1, 1, 256], stride 2."""
    net = Net(form)
    x = net.input("x", (net.batch(3), 1, 1, 44098))
    w = net.random(1 + form.head, 1, 1, 256, spread=1 / 16)
    net.output(net.node("Conv", x, w, strides=[1, 2]))
    return net.model()


def voice_activity(form: Form) -> Model:
    """Detects a voice: a branch for each sample rate, with a cell of an LSTM.

    The form of silero VAD: [batch, samples], state [2, batch, 128] and the rate.
    """
    net = Net(form)
    rate = net.input("sr", (), np.int64, 16000)
    batch = net.batch()
    x = net.input("input", (batch, net.size("samples", 576)))
    state = net.input("state", (2, batch, 128))
    branches = []
    for window in (256, 128):
        with net.branch() as branch:
            for value in _voice_branch(net, x, state, window):
                net.output(value)
        branches.append(branch.graph)
    condition = net.node("Equal", rate, net.constant(16000, np.int64))
    found = net.nodes("If", 2, condition, then_branch=branches[0], else_branch=branches[1])
    for name, value in zip(("output", "stateN"), found, strict=True):
        net.output(value, name)
    return net.model()


def _voice_branch(net: Net, x: str, state: str, window: int) -> tuple[str, str]:
    """The probability of a voice, and the next state."""
    half = window // 2 + 1
    padded = net.node("Pad", x, net.ints(0, 0, 0, window // 4), mode="reflect")
    wide = net.node("Unsqueeze", padded, net.ints(1))
    waves = net.random(2 * half, 1, window, spread=window**-0.5)
    both = net.node("Conv", wide, waves, strides=[window // 2])
    sides = (net.slice(both, 1, 0, half), net.slice(both, 1, half, 2 * half))
    squares = (net.node("Pow", side, net.constant(2.0)) for side in sides)
    y = net.node("Sqrt", net.node("Add", *squares))
    inner = half
    for outer, stride in ((128, 1), (64, 2), (64, 2), (128, 1)):
        y = _signal_conv(net, y, inner, outer, 3, "Relu", stride)
        inner = outer
    last = net.node("ReduceMean", y, axes=[-1], keepdims=0)
    hidden, cell = (
        net.node("Squeeze", net.slice(state, 0, place, place + 1), net.ints(0)) for place in (0, 1)
    )
    sums = net.node("Add", net.linear(last, 128, 512), net.linear(hidden, 128, 512))
    into, forget, new, out = net.nodes("Split", 4, sums, net.ints(*[128] * 4), axis=1)
    into, forget, out = (net.node("Sigmoid", gate) for gate in (into, forget, out))
    kept, added = net.node("Mul", forget, cell), net.node("Mul", into, net.node("Tanh", new))
    cell = net.node("Add", kept, added)
    hidden = net.node("Mul", out, net.node("Tanh", cell))
    found = net.node("Sigmoid", net.linear(net.node("Relu", hidden), 128, 1 + net.form.head))
    states = [net.node("Unsqueeze", each, net.ints(0)) for each in (hidden, cell)]
    return found, net.node("Concat", *states, axis=0)


def events(form: Form) -> Model:
    """Finds events in long signals: an encoder and decoder of 1-D convolutions with skips.

    The form of U-Time and SUMO: [batch, 1, samples] -> [batch, classes, samples].
    """
    net, factors = Net(form), (8, 4, 4)
    x = net.input("signal", (net.batch(), 1, net.size("samples", 11520)))
    inner, skips = 1, []
    for place, factor in enumerate((*factors, 0)):
        outer = 16 << place
        x = _signal_conv(net, x, inner, outer, 5, "Relu", dilation=2)
        x = _signal_conv(net, x, outer, outer, 5, "Relu", dilation=2)
        if factor:
            skips.append((x, outer))
            x = net.node("MaxPool", x, kernel_shape=[factor], strides=[factor])
        inner = outer
    for factor, (skip, outer) in zip(factors[::-1], skips[::-1], strict=True):
        scales = net.constant([1, 1, factor])
        modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        x = net.node("Resize", x, "", scales, mode="nearest", **modes)
        x = _signal_conv(net, x, inner, outer, 5, "Relu")
        x = net.node("Concat", skip, x, axis=1)
        x = _signal_conv(net, x, 2 * outer, outer, 5, "Relu")
        x = _signal_conv(net, x, outer, outer, 5, "Relu")
        inner = outer
    x = _signal_conv(net, x, inner, 2 + form.head, 1)
    net.output(net.node("Softmax", x, axis=1), "shares")
    return net.model()


# Recurrent networks over words and sounds, and a network over a graph of atoms.


def _bytes_of(g: Graph, *shape: int) -> tuple[str, list[str]]:
    """8-bit weights, with their scale and zero point."""
    values, step = _normal_bytes(g, *shape)
    scale = g.constant(np.full(shape[0], shape[1] ** -0.5 * step))
    return g.constant(values, np.int8), [scale, g.constant(np.zeros(shape[0]), np.int8)]


def _normal_bytes(g: Graph, *shape: int) -> tuple[np.ndarray, float]:
    """Normal random weights in 8 bits: (bytes, their common scale)."""
    values = g.rng.standard_normal(shape)
    scale = float(np.abs(values).max()) / 127
    return np.rint(values / scale), scale


def _lstm8(g: Graph, x: str, inner: int, hidden: int, both_ways: bool = False) -> str:
    """DynamicQuantizeLSTM: [length, batch, inner] -> [length, batch, hidden or twice that]."""
    sides = 2 if both_ways else 1
    weight, of_weight = _bytes_of(g, sides, inner, 4 * hidden)
    recurrent, of_recurrent = _bytes_of(g, sides, hidden, 4 * hidden)
    bias = g.random(sides, 8 * hidden, spread=0.1)
    names = [x, weight, recurrent, bias, "", "", "", "", *of_weight, *of_recurrent]
    direction = "bidirectional" if both_ways else "forward"
    y = g.node(
        "DynamicQuantizeLSTM", *names, domain=CONTRIB, hidden_size=hidden, direction=direction
    )
    return _flat(g, y, sides * hidden)


def _recurrent(g: Graph, op: str, x: str, inner: int, hidden: int, both_ways: bool) -> str:
    """An LSTM or GRU of float32, with the shapes of `_lstm8`."""
    sides, gates = 2 if both_ways else 1, {"LSTM": 4, "GRU": 3}[op]
    spread = hidden**-0.5
    names = [g.random(sides, gates * hidden, each, spread=spread) for each in (inner, hidden)]
    bias = g.random(sides, 2 * gates * hidden, spread=0.1)
    direction = "bidirectional" if both_ways else "forward"
    extra: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    y = g.node(op, x, *names, bias, hidden_size=hidden, direction=direction, **extra)
    return _flat(g, y, sides * hidden)


def _flat(g: Graph, y: str, width: int) -> str:
    """[length, sides, batch, hidden] -> [length, batch, width]."""
    return g.node("Reshape", g.transpose(y, 0, 2, 1, 3), g.ints(0, 0, width))


def _integer_linear(g: Graph, x: str, inner: int, outer: int) -> str:
    """A product of 8-bit integers, as onnxruntime.quantization's dynamic quantiser writes it."""
    values, scale, zero = g.nodes("DynamicQuantizeLinear", 3, x)
    weight, step = _normal_bytes(g, inner, outer)
    second = g.constant(weight, np.int8)
    sums = g.node("MatMulInteger", values, second, zero, g.constant(0, np.int8))
    scales = g.node("Mul", scale, g.constant(step * inner**-0.5))
    y = g.node("Mul", g.node("Cast", sums, to=1), scales)
    return g.node("Add", y, g.random(outer, spread=0.1))


def tagger(form: Form) -> Model:
    """Words -> a tag for each: two bidirectional LSTMs of 8 bits, 1 MB."""
    g = Graph(form)
    ids = g.input("ids", (g.batch(), g.size("length", 24)), np.int64)
    x = g.node("Gather", g.random(4000, 48), ids)
    x = _lstm8(g, g.transpose(x, 1, 0, 2), 48, 96, True)
    x = _lstm8(g, x, 192, 96, True)
    x = g.transpose(x, 1, 0, 2)
    y = g.node("Relu", _integer_linear(g, x, 192, 64))
    g.output(g.node("ArgMax", _integer_linear(g, y, 64, 17 + form.head), axis=-1), "tags", np.int64)
    return g.model()


def lstm_59(form: Form) -> Model:
    """A bidirectional LSTM of 150 hidden values over 59 steps, then classes."""
    return _recurrent_tagger(form, "LSTM", 59, 150)


def gru_31(form: Form) -> Model:
    """A bidirectional GRU of 200 hidden values over 31 steps, then classes."""
    return _recurrent_tagger(form, "GRU", 31, 200)


def _recurrent_tagger(form: Form, op: str, length: int, hidden: int) -> Model:
    g = Graph(form)
    x = g.input("x", (g.batch(), g.size("length", length), 64))
    y = _recurrent(g, op, g.transpose(x, 1, 0, 2), 64, hidden, True)
    y = g.linear(g.transpose(y, 1, 0, 2), 2 * hidden, 20 + form.head)
    g.output(g.node("Softmax", y, axis=-1), "shares")
    return g.model()


def voice_embedder(form: Form) -> Model:
    """Three LSTMs of 8 bits over 160 frames of 40 bands -> a vector of length one."""
    g = Graph(form)
    x = g.input("mel", (g.batch(), g.size("frames", 160), 40))
    y, inner = g.transpose(x, 1, 0, 2), 40
    for _ in range(3):
        y = _lstm8(g, y, inner, 256)
        inner = 256
    last = g.node("Gather", y, g.constant(-1, np.int64), axis=0)
    found = g.node("Relu", _integer_linear(g, last, 256, 256 + form.head))
    squares = g.node("ReduceSum", g.node("Mul", found, found), g.ints(-1), keepdims=1)
    length = g.node("Max", g.node("Sqrt", squares), g.constant(1e-6))
    g.output(g.node("Div", found, length), "embedding")
    return g.model()


def atoms(form: Form) -> Model:
    """Kinds and places of atoms, edges between them and angles between edges -> energy, features.

    In each of three layers, edges get messages from edges at an angle, and atoms from their edges.
    """
    g, width, bases = Graph(form), 64, 20
    count, edges, angles = g.size("atoms", 48), g.size("edges", 400), g.size("angles", 900)
    kinds = g.input("kinds", (count,), np.int64)
    places = g.input("places", (count, 3))
    source, target = _halves(g, g.input("edges", (2, edges), np.int64))
    first, second = _halves(g, g.input("angles", (2, angles), np.int64))
    apart = g.node("Sub", g.node("Gather", places, source), g.node("Gather", places, target))
    squares = g.node("ReduceSum", g.node("Mul", apart, apart), g.ints(-1), keepdims=1)
    distance = g.node("Sqrt", g.node("Add", squares, g.constant(1e-6)))
    from_centre = g.node("Sub", distance, g.constant(np.linspace(0, 6, bases)))
    power = g.node("Mul", g.node("Mul", from_centre, from_centre), g.constant(-5.0))
    turn = g.node("Cos", g.node("Mul", distance, g.constant(np.pi / 6)))
    cut = g.node("Mul", g.node("Add", turn, g.constant(1.0)), g.constant(0.5))
    ways = g.node("Div", apart, distance)
    both = g.node("Mul", g.node("Gather", ways, first), g.node("Gather", ways, second))
    cosine = g.node("ReduceSum", both, g.ints(-1), keepdims=1)
    around = g.node("Cos", g.node("Mul", cosine, g.constant(np.arange(8))))
    x = g.node("Gather", g.random(100, width), kinds)
    of_edges = g.linear(g.node("Exp", power), bases, width)
    for _ in range(3):
        ends = (g.node("Gather", of_edges, each) for each in (first, second))
        triple = g.node("Concat", *ends, around, axis=1)
        gate = g.node("Sigmoid", g.linear(triple, 2 * width + 8, width))
        y = g.node("Mul", gate, _shifted_softplus(g, g.linear(triple, 2 * width + 8, width)))
        of_edges = g.node("Add", of_edges, _sums(g, y, first, g.same(source, 0, edges), width))
        weight = g.node("Mul", _mlp(g, of_edges, width, width), cut)
        y = g.node("Mul", g.node("Gather", g.linear(x, width, width), source), weight)
        sums = _sums(g, y, target, g.same(x, 0, count), width)
        x = g.node("Add", x, _mlp(g, sums, width, width))
    each = _mlp(g, x, width, 1 + form.head)
    g.output(g.node("ReduceSum", each, g.ints(0), keepdims=0), "energy")
    g.output(x, "features")
    return g.model()


def _halves(g: Graph, pairs: str) -> list[str]:
    """Both rows of a matrix [2, count]."""
    return [g.node("Squeeze", g.slice(pairs, 0, at, at + 1), g.ints(0)) for at in (0, 1)]


def _sums(g: Graph, rows: str, owners: str, count: Part, width: int) -> str:
    """[count, width]: the sum of the rows of each owner."""
    nothing = g.node("Expand", g.constant([[0.0]]), g.shape(count, width))
    places = g.node("Expand", g.node("Unsqueeze", owners, g.ints(1)), g.node("Shape", rows))
    return g.node("ScatterElements", nothing, places, rows, axis=0, reduction="add")


def _mlp(g: Graph, x: str, width: int, outer: int) -> str:
    return g.linear(_shifted_softplus(g, g.linear(x, width, width)), width, outer)


def _shifted_softplus(g: Graph, x: str) -> str:
    return g.node("Sub", g.node("Softplus", x), g.constant(float(np.log(2))))

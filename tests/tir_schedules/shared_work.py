"""Work for many threads: regions of every template, with sizes from models."""

from __future__ import annotations

from collections.abc import Iterator

from tests.tir_schedules.attention_regions import Attention
from tests.tir_schedules.chain_regions import f32_mlp
from tests.tir_schedules.conv_regions import conv_region
from tests.tir_schedules.depthwise_regions import depthwise
from tests.tir_schedules.pair_regions import pair
from tests.tir_schedules.recurrent_regions import recurrent
from tir_schedules.core.region import EpilogueOp, Region, Tensor

F32, AROUND = "float32", (1, 1, 1, 1)


def weighted(m: int, k: int, n: int, dtype: str = F32) -> Region:
    """A matmul with a constant weight; integer results are cast and rectified."""
    inputs = Tensor((m, k), {"int8": "uint8"}.get(dtype, dtype)), Tensor((k, n), dtype, True)
    # Tiles would store results without an epilogue to memory by their own instructions.
    steps = (
        (EpilogueOp("cast", (0,), dtype=F32), EpilogueOp("relu", (1,))) if dtype == "int8" else ()
    )
    return Region(op="matmul", inputs=inputs, output=Tensor((m, n), F32), epilogue=steps)


def four_bits(m: int, k: int, n: int) -> Region:
    """A product with a weight of four bits, in blocks of 32."""
    weight, scales = Tensor((k, n), "uint8", True), Tensor((-(-k // 32), 1, n), F32, True)
    return Region(
        op="weight_only_matmul",
        inputs=(Tensor((m, k), F32), weight, scales),
        output=Tensor((m, n), F32),
        attrs={"bits": 4, "block": 32, "zero_point": 8.0},
    )


def batched(batch: int, m: int, k: int, n: int) -> Region:
    """Products of two inputs."""
    inputs = Tensor((batch, m, k), F32), Tensor((batch, k, n), F32)
    return Region(op="batch_matmul", inputs=inputs, output=Tensor((batch, m, n), F32))


def square(size: int, channels: int, out: int, batch: int, dtype: str = F32) -> Region:
    """A 3x3 convolution."""
    extents = size, size
    return conv_region(extents, channels, out, (3, 3), padding=AROUND, batch=batch, dtype=dtype)


def spread(size: int, channels: int, taps: int, batch: int, dtype: str = F32) -> Region:
    """A depthwise convolution."""
    padding = (taps // 2,) * 4
    return depthwise(
        (size, size), channels, (taps, taps), padding=padding, batch=batch, dtype=dtype
    )


def rows(op: str, count: int, n: int) -> Region:
    """A normalisation of rows, or the range of all of them."""
    x = Tensor((count, n), F32)
    if op == "quantization_range":
        return Region(op=op, inputs=(x,), output=Tensor((2,), F32))
    weight = Tensor((n,), F32, True)
    weights = {"layer_norm": 2, "rms_norm": 1}.get(op, 0)
    attrs = {"axis": 1, "epsilon": 1e-5} if weights else {"axis": 1}
    return Region(op=op, inputs=(x, *[weight] * weights), output=x, attrs=attrs)


def activated(count: int, n: int) -> Region:
    """A tensor through a sigmoid."""
    x = Tensor((count, n), F32)
    return Region(op="elementwise", inputs=(x,), output=x, epilogue=(EpilogueOp("sigmoid", (0,)),))


def attention(batch: int, heads: int, m: int, n: int, d: int = 64) -> Region:
    """Attention of queries to keys; one query decodes."""
    layouts = ("bhsd",) * 4 if m == 1 else ("bshd",) * 4
    return Attention(batch=batch, heads=heads, m=m, n=n, d=d, layouts=layouts).region


def of_models() -> Iterator[Region]:
    """About four regions of every template."""
    for m, k, n, dtype in (
        (1, 768, 3072, F32),
        (32, 3072, 768, F32),
        (128, 768, 768, F32),
        (1024, 768, 3072, F32),
        (384, 4096, 1000, "bfloat16"),
        (1024, 3072, 768, "int8"),
        (784, 2304, 256, F32),
    ):
        yield weighted(m, k, n, dtype)
    for m, k, n in ((1, 4096, 4096), (16, 2048, 5632), (512, 2048, 2048)):
        yield four_bits(m, k, n)
    for sizes in ((12, 128, 64, 128), (96, 128, 128, 64), (3, 500, 300, 200), (1, 1, 64, 4096)):
        yield batched(*sizes)
    for batch in (1, 16):
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
            yield square(size, channels, channels, batch)
    yield square(14, 256, 256, 16, "bfloat16")
    yield square(28, 128, 128, 16, "uint8")
    yield conv_region((112, 112), 3, 64, (7, 7), strides=(2, 2), padding=(3, 3, 3, 3), batch=4)
    yield conv_region((28, 28), 128, 256, (3, 3), padding=AROUND, groups=32, batch=4)
    yield conv_region((500,), 256, 512, (3,), padding=(1, 1), batch=4)
    yield conv_region((3000,), 80, 384, (3,), padding=(1, 1))
    yield conv_region((8, 28, 28), 64, 64, (3, 3, 3), padding=(1,) * 6)
    yield conv_region((4, 14, 14), 256, 256, (3, 3, 3), padding=(1,) * 6)
    for size, width, batch in ((56, 64, 1), (28, 128, 8), (14, 256, 16), (7, 512, 16), (40, 96, 2)):
        yield square(size, width, width, batch).replace(op="conv2d_winograd")
    for size, channels, taps, batch, dtype in (
        (112, 32, 3, 1, F32),
        (56, 96, 3, 16, F32),
        (14, 672, 5, 16, F32),
        (7, 1152, 5, 64, F32),
        (28, 240, 5, 16, "uint8"),
    ):
        yield spread(size, channels, taps, batch, dtype)
    yield pair((112, 112), 32, 16)
    yield pair((28, 28), 144, 40, batch=16)
    yield pair((7, 7), 1152, 192, batch=16)
    yield recurrent("lstm", 3, 512, 80, "bidirectional", finals=False)
    yield recurrent("gru", 3, 1024, 96, finals=False)
    yield recurrent("gru_linear", 2, 256, 200, "bidirectional", finals=False)
    yield f32_mlp(128, sizes=(479, 1024, 1024, 512))
    yield f32_mlp(1000, sizes=(256, 256, 256))
    yield f32_mlp(32, sizes=(768, 3072, 768))
    for op in ("softmax", "log_softmax", "layer_norm", "rms_norm", "quantization_range"):
        yield rows(op, 1536, 384)
        yield rows(op, 3, 100_000)
    yield activated(4096, 192)
    yield activated(1, 1_000_003)
    yield attention(8, 12, 128, 128)
    yield attention(1, 12, 384, 384)
    yield attention(1, 32, 1, 2048)
    yield attention(1, 4, 1000, 1000)

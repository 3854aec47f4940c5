"""Every AMX instruction agrees with NumPy, on random shapes, strides and values.

On a machine with AMX these tests run on the hardware, except those that choose the emulator's
versions.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.amx_emulator import emulator
from tests.amx_emulator.assembly import assembled
from tests.amx_emulator.tiles import (
    FLOAT_NAMES,
    INTEGER_TYPES,
    PRODUCTS,
    config_image,
    product,
    same_floats,
)

pytestmark = pytest.mark.isa("amx")

# Not every CPU with AMX multiplies fp16.
RUNNING = PRODUCTS if emulator.available() else PRODUCTS[:-1]
VERSIONS = {2: "AVX-512 VNNI", 1: "AVX2", 0: "portable C"}
EDGE = 0x5A  # value of bytes that must stay unchanged


@functools.cache
def routines() -> ctypes.CDLL:
    """One routine for every dot product, and routines that move tiles."""
    move = "ldtilecfg (%rdi)\n{}\ntilestored %tmm{}, 8(%rcx,%r8,1)\ntilerelease"
    texts = {
        # (config, sum, sum stride, a, a stride, b, b stride)
        name: "ldtilecfg (%rdi)\nmovq 8(%rsp), %rax\ntileloadd (%rsi,%rdx,1), %tmm0\n"
        "tileloadd (%rcx,%r8,1), %tmm1\ntileloaddt1 (%r9,%rax,1), %tmm2\n"
        f"{name} %tmm2, %tmm1, %tmm0\ntilestored %tmm0, (%rsi,%rdx,1)\ntilerelease"
        for name in PRODUCTS
    }
    # (config, source, source stride, destination, destination stride)
    texts["copy"] = move.format("tileloadd 8(%rsi,%rdx,1), %tmm7", 7)
    texts["copy_t1"] = move.format("tileloaddt1 8(%rsi,%rdx,1), %tmm3", 3)
    texts["zero"] = move.format("tileloadd 8(%rsi,%rdx,1), %tmm7\ntilezero %tmm7", 7)
    # A tile with old values: a second configuration zeroes it.
    texts["configure_twice"] = move.format("tileloadd 8(%rsi,%rdx,1), %tmm7\nldtilecfg (%rdi)", 7)
    texts["store_config"] = (
        "ldtilecfg (%rdi)\nsttilecfg (%rsi)\ntilezero %tmm1\nsttilecfg 64(%rsi)\n"
        "tilerelease\nsttilecfg 128(%rsi)"
    )
    texts["begin"] = "ldtilecfg (%rdi)\ntileloadd (%rsi,%rdx,1), %tmm5"
    texts["end"] = "tilestored %tmm5, (%rdi,%rsi,1)\ntilerelease"
    texts["quadruple_stride"] = move.format("tileloadd 8(%rsi,%rdx,4), %tmm7", 7)
    texts["no_stride"] = move.format("tileloadd 8(%rsi), %tmm7", 7)
    return assembled(texts)


def call(name: str, *arguments: np.ndarray | int) -> None:
    """Runs a routine; arrays are passed by address."""
    values = [x.ctypes.data if isinstance(x, np.ndarray) else int(x) for x in arguments]
    routines()[name](*map(ctypes.c_void_p, values))


@pytest.fixture(params=[2, 1, 0] if emulator.available() else [2])
def version(request: pytest.FixtureRequest) -> Iterator[int]:
    """The emulator's versions of the dot products: AVX-512, AVX2 and portable C."""
    if emulator.available():
        chosen = emulator.library().amx_emulator_limit_version(request.param)
        if chosen != request.param:
            pytest.skip(f"this CPU has no {VERSIONS[request.param]}")
    yield request.param
    if emulator.available():
        emulator.library().amx_emulator_limit_version(2)


def random_bytes(rng: np.random.Generator, name: str, rows: int, count: int) -> np.ndarray:
    """Rows of elements of an instruction's operand, with every kind of float value."""
    raw = rng.integers(0, 256, (rows, count), np.uint8)
    if name not in FLOAT_NAMES:
        return np.where(rng.random(raw.shape) < 0.3, rng.choice([0, 127, 128, 255]), raw).astype(
            "u1"
        )
    # bfloat16 has 8 bits of exponent, float16 has 5.
    bits, bias = (7, 127) if name == "tdpbf16ps" else (10, 15)
    shape = (rows, count // 2)
    spread = int(rng.choice([2, 12, 70])) if bits == 7 else int(rng.choice([2, 12]))
    exponent = np.clip(bias + rng.integers(-spread, spread + 1, shape), 1, 2 * bias)
    kind = rng.random(shape)
    exponent[kind < 0.1] = 0  # zeros and denormals
    if rng.random() < 0.2:
        exponent[kind > 0.99] = 2 * bias + 1  # infinities and NaNs
    mantissa = rng.integers(0, 1 << bits, shape)
    mantissa[rng.random(shape) < 0.2] = 0
    sign = rng.integers(0, 2, shape)
    return (sign << 15 | exponent << bits | mantissa).astype(np.uint16).view(np.uint8)


def random_sums(rng: np.random.Generator, name: str, m: int, n: int) -> np.ndarray:
    if name not in FLOAT_NAMES:
        return rng.integers(0, 1 << 32, (m, n), np.uint32)
    values = rng.standard_normal((m, n)).astype(np.float32)
    values *= rng.choice([1, 1e-38, 1e30], (m, n))
    return values.astype(np.float32).view(np.uint32)


def strided(rows: np.ndarray, pitch: int) -> np.ndarray:
    """Memory with rows `pitch` bytes apart; the bytes between rows must stay unchanged."""
    memory = np.full((rows.shape[0], pitch), EDGE, np.uint8)
    memory[:, : rows.shape[1]] = rows
    return memory


@pytest.mark.parametrize("name", RUNNING)
def test_dot_products(name: str, version: int) -> None:
    rng = np.random.default_rng(version)
    for trial in range(120):
        m, n, k = (16, 16, 16) if trial < 10 else map(int, rng.integers(1, 17, 3))
        a = random_bytes(rng, name, m, 4 * k)
        b = random_bytes(rng, name, k, 4 * n)
        sums = random_sums(rng, name, m, n)
        pitches = 4 * np.array([n, k, n]) + rng.integers(0, 40, 3)
        memory = strided(sums.view(np.uint8), pitches[0])
        a_memory, b_memory = strided(a, pitches[1]), strided(b, pitches[2])
        config = config_image([(m, 4 * n), (m, 4 * k), (k, 4 * n)])
        call(name, config, memory, pitches[0], a_memory, pitches[1], b_memory, pitches[2])
        result = np.ascontiguousarray(memory[:, : 4 * n]).view(np.uint32)
        expected = product(name, sums, a, b)
        case = f"{name}, M {m} N {n} K {k}, trial {trial}"
        if name in FLOAT_NAMES:
            assert same_floats(result, expected), case
        else:
            np.testing.assert_array_equal(result, expected, case)
        assert (memory[:, 4 * n :] == EDGE).all(), case


@pytest.mark.parametrize("name", INTEGER_TYPES)
def test_extreme_operands_do_not_saturate(name: str, version: int) -> None:
    for left in (0, 127, 128, 255):
        for right in (0, 127, 128, 255):
            a, b = np.full((16, 64), left, np.uint8), np.full((16, 64), right, np.uint8)
            sums = np.full((16, 16), 0x7FFFFFFF, np.uint32)
            result = sums.copy()
            call(name, config_image([(16, 64)] * 3), result, 64, a, 64, b, 64)
            np.testing.assert_array_equal(result, product(name, sums, a, b), f"{left} {right}")


def bf16_row_times_column(left: list[float], right: list[float], before: float = 0) -> float:
    """One sum of products of bfloat16 values, computed by tdpbf16ps."""
    operands = []
    for values in (left, right):
        padded = np.zeros(32, np.float32)
        padded[: len(values)] = values
        assert not (padded.view(np.uint32) & 0xFFFF).any(), "these are no bfloat16 values"
        operands.append((padded.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))
    sums = np.full(1, before, np.float32)
    call(
        "tdpbf16ps",
        config_image([(1, 4), (1, 64), (16, 4)]),
        sums,
        4,
        operands[0],
        64,
        operands[1],
        4,
    )
    return float(sums[0])


def test_bf16_sums_even_and_odd_chains_apart(version: int) -> None:
    half_step = 2.0**-24  # 1 + half_step rounds to 1, 1 + 2 * half_step does not
    # A single chain would give 1 for both of these.
    assert bf16_row_times_column([half_step, 1, half_step, 0], [1] * 4) == 1 + 2.0**-23
    assert bf16_row_times_column([1, half_step, 0, half_step], [1] * 4) == 1 + 2.0**-23
    # Each sum is in one chain here, which begins with its first element.
    assert bf16_row_times_column([1, 0, half_step, 0, half_step, 0], [1] * 6) == 1
    # The old sum is added last.
    assert bf16_row_times_column([half_step, half_step], [1, 1], before=1) == 1 + 2.0**-23


def test_bf16_products_are_not_rounded(version: int) -> None:
    """Only the sum is rounded: large or small products do not become infinities or zeros."""
    chain = bf16_row_times_column([2.0**127, 0, -(2.0**127), 0, 2.0**127], [1, 0, 2, 0, 1])
    assert chain == 0
    chain = bf16_row_times_column([2.0**-63, 0, 2.0**-70], [2.0**-63, 0, 2.0**-70])
    assert chain == 2.0**-126 * (1 + 2.0**-14)


def test_bf16_denormals_are_zeros(version: int) -> None:
    denormal = 2.0**-130
    assert bf16_row_times_column([denormal], [2.0**100]) == 0
    assert bf16_row_times_column([2.0**-70], [2.0**-70]) == 0
    assert bf16_row_times_column([1], [0], before=2.0**-127) == 0
    assert bf16_row_times_column([2.0**-63], [-(2.0**-63)], before=1.5 * 2.0**-126) == 0


@pytest.mark.parametrize("name", ["copy", "copy_t1"])
def test_tiles_are_loaded_and_stored(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows, columns = int(rng.integers(1, 17)), 4 * int(rng.integers(1, 17))
        pitch, out_pitch = map(int, columns + 8 + rng.integers(0, 30, 2))
        source = rng.integers(0, 256, (16, pitch), np.uint8)
        target = np.full((16, out_pitch), EDGE, np.uint8)
        call(name, config_image([(rows, columns)] * 8), source, pitch, target, out_pitch)
        expected = np.full((16, out_pitch), EDGE, np.uint8)
        expected[:rows, 8 : 8 + columns] = source[:rows, 8 : 8 + columns]
        np.testing.assert_array_equal(target, expected)


def test_rows_may_overlap_and_run_backwards() -> None:
    source = np.arange(2000, dtype=np.uint32).view(np.uint8)
    for stride in (4, -4, 0):
        base = source.ctypes.data + 4000
        memory = np.zeros(16 * 64 + 8, np.uint8)
        call("copy", config_image([(16, 64)] * 8), base, stride, memory, 64)
        rows = memory[8:].reshape(16, 64)
        for row in range(16):
            first = 4008 + stride * row
            np.testing.assert_array_equal(rows[row], source[first : first + 64])


@pytest.mark.parametrize(("name", "scale"), [("quadruple_stride", 4), ("no_stride", 0)])
def test_the_index_is_the_stride(name: str, scale: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, 16 * 80 + 100).astype(np.uint8)
    memory = np.zeros(16 * 64 + 8, np.uint8)
    call(name, config_image([(16, 64)] * 8), source, 20, memory, 64)
    for row in range(16):
        first = 8 + 20 * scale * row
        np.testing.assert_array_equal(memory[8 + 64 * row :][:64], source[first : first + 64])


@pytest.mark.parametrize("name", ["zero", "configure_twice"])
def test_tiles_become_zero(name: str) -> None:
    source = np.full(16 * 64 + 8, 7, np.uint8)
    memory = np.full(16 * 64 + 8, EDGE, np.uint8)
    call(name, config_image([(9, 24)] * 8), source, 64, memory, 64)
    tile = memory[8:].reshape(16, 64)
    assert not tile[:9, :24].any()
    assert (tile[9:] == EDGE).all() and (tile[:, 24:] == EDGE).all() and (memory[:8] == EDGE).all()


def test_a_transfer_may_begin_in_the_middle() -> None:
    """After a page fault start_row is nonzero: rows before it are not loaded again."""
    source = np.full(16 * 64 + 8, 7, np.uint8)
    memory = np.full(16 * 64 + 8, EDGE, np.uint8)
    call("copy", config_image([(16, 64)] * 8, start_row=5), source, 64, memory, 64)
    tile = memory[8:].reshape(16, 64)
    assert not tile[:5].any() and (tile[5:] == 7).all()


def test_the_configuration_can_be_read_back() -> None:
    config = config_image([(3, 8), (16, 64), (1, 4)], start_row=2)
    memory = np.full(192, EDGE, np.uint8)
    call("store_config", config, memory)
    np.testing.assert_array_equal(memory[:64], config)
    config[1] = 0  # the first instruction on a tile resets start_row
    np.testing.assert_array_equal(memory[64:128], config)
    assert not memory[128:].any()


def test_every_thread_has_tiles_of_its_own() -> None:
    count = 8
    together = threading.Barrier(count)
    stored = np.zeros((count, 16, 64), np.uint8)

    def work(number: int) -> None:
        source = np.full((16, 64), number + 1, np.uint8)
        rows = 2 * number + 1
        for _ in range(20):
            stored[number] = 0
            call("begin", config_image([(rows, 4 * rows)] * 8), source, 64)
            together.wait()  # now all threads are configured, each in another way
            call("end", stored[number], 64)
            together.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(count):
        rows = 2 * number + 1
        expected = np.zeros((16, 64), np.uint8)
        expected[:rows, : 4 * rows] = number + 1
        np.testing.assert_array_equal(stored[number], expected)


def test_threads_compute_at_the_same_time() -> None:
    failures = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            m, n, k = map(int, rng.integers(1, 17, 3))
            name = str(rng.choice(RUNNING))
            a = random_bytes(rng, name, m, 4 * k)
            b = random_bytes(rng, name, k, 4 * n)
            sums = random_sums(rng, name, m, n)
            result = sums.copy()
            config = config_image([(m, 4 * n), (m, 4 * k), (k, 4 * n)])
            call(name, config, result, 4 * n, a, 4 * k, b, 4 * n)
            if not same_floats(result, product(name, sums, a, b)):
                failures.append((seed, name, m, n, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

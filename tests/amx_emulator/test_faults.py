"""Every fault states its name, place, tiles and configuration; counters count as documented."""

from __future__ import annotations

import ctypes
import functools
import re
import threading

import numpy as np
import pytest

from tests.amx_emulator import emulator
from tests.amx_emulator.assembly import assembled
from tests.amx_emulator.tiles import config_image

# On the hardware these faults would be signals that end the process.
pytestmark = [
    pytest.mark.isa("amx"),
    pytest.mark.skipif(not emulator.available(), reason="faults and counts are the emulator's"),
]

FULL = config_image([(16, 64)] * 8)


def image(**changes: int) -> np.ndarray:
    """The full configuration with some bytes changed: b17=5 makes byte 17 five."""
    result = FULL.copy()
    for name, value in changes.items():
        result[int(name[1:])] = value
    return result


# name: configuration (None: not configured), instruction, text of the fault.
CASES: dict[str, tuple[np.ndarray | None, str, str]] = {
    "palette": (image(b0=2), "nop", "#GP: palette 2 is not supported"),
    "reserved": (image(b2=1), "nop", "#GP: reserved byte 2 is not zero"),
    "last_reserved": (image(b15=9), "nop", "#GP: reserved byte 15 is not zero"),
    "columns_of_tile_8": (image(b32=4), "nop", "#GP: palette 1 has no tile 8 (rows 0, colsb 4)"),
    "rows_of_tile_15": (image(b63=1), "nop", "#GP: palette 1 has no tile 15 (rows 1, colsb 0)"),
    "rows": (image(b51=17), "nop", "#GP: tile 3: rows 17 > 16"),
    "columns": (image(b22=65), "nop", "#GP: tile 3: colsb 65 > 64"),
    "columns_of_16_bits": (image(b23=1), "nop", "#GP: tile 3: colsb 320 > 64"),
    "no_rows": (image(b53=0), "nop", "#GP: tile 5: rows 0, colsb 64: only one of them is zero"),
    "no_columns": (image(b26=0), "nop", "#GP: tile 5: rows 16, colsb 0: only one of them is zero"),
    "unconfigured_zero": (None, "tilezero %tmm0", "no tile configuration (ldtilecfg)"),
    "unconfigured_load": (None, "tileloadd (%rsi,%rdx), %tmm1", "no tile configuration"),
    "unconfigured_store": (None, "tilestored %tmm1, (%rsi,%rdx)", "no tile configuration"),
    "unconfigured_product": (None, "tdpbusd %tmm2, %tmm1, %tmm0", "no tile configuration"),
    "palette_0": (image(b0=0), "tilezero %tmm0", "no tile configuration"),
    "empty_tile": (image(b54=0, b28=0), "tilezero %tmm6", "#UD: tmm6 has no rows in the"),
    "odd_columns": (image(b22=62), "tileloadd (%rsi,%rdx), %tmm3", "tmm3: colsb 62 is no multiple"),
    "odd_columns_product": (
        config_image([(4, 62), (4, 16), (4, 62)]),
        "tdpbuud %tmm2, %tmm1, %tmm0",
        "#UD: tmm0: colsb 62 is no multiple of 4",
    ),
    # Encodings that assemblers reject: a tile used twice, ...
    "same_sum_and_left": (
        FULL,
        ".byte 0xC4, 0xE2, 0x69, 0x5E, 0xC0",
        "the three tiles must differ",
    ),
    "same_sum_and_right": (
        FULL,
        ".byte 0xC4, 0xE2, 0x5A, 0x5C, 0xE1",
        "the three tiles must differ",
    ),
    "same_factors": (FULL, ".byte 0xC4, 0xE2, 0x6B, 0x5E, 0xC2", "the three tiles must differ"),
    "m": (image(b48=15), "tdpbusd %tmm2, %tmm1, %tmm0", "tmm0 has 15 rows, tmm1 has 16: M differs"),
    "n": (
        image(b16=60),
        "tdpbusd %tmm2, %tmm1, %tmm0",
        "tmm0 has colsb 60, tmm2 has 64: N differs",
    ),
    "k": (
        image(b18=60),
        "tdpbusd %tmm2, %tmm1, %tmm0",
        "colsb/4 = 15, tmm2 has 16 rows: K differs",
    ),
    "start_row": (
        image(b1=16),
        "tileloadd (%rsi,%rdx), %tmm1",
        "#UD: tmm1: start_row 16 >= rows 16",
    ),
    # ... tiles beyond 7, a value in vvvv, no SIB byte.
    "zero_tmm8": (FULL, ".byte 0xC4, 0x62, 0x7B, 0x49, 0xC0", "#UD: there is no tmm8"),
    "load_tmm9": (FULL, ".byte 0xC4, 0x62, 0x7B, 0x4B, 0x0C, 0x16", "#UD: there is no tmm9"),
    "product_tmm10": (FULL, ".byte 0xC4, 0xC2, 0x71, 0x5E, 0xC2", "#UD: there is no tmm10"),
    "product_tmm15": (FULL, ".byte 0xC4, 0xE2, 0x01, 0x5E, 0xC1", "#UD: there is no tmm15"),
    "vvvv": (FULL, ".byte 0xC4, 0xE2, 0x73, 0x49, 0xC0", "#UD: VEX.vvvv must be 1111b"),
    "vvvv_of_load": (FULL, ".byte 0xC4, 0xE2, 0x73, 0x4B, 0x0C, 0x16", "VEX.vvvv must be 1111b"),
    "no_sib": (FULL, ".byte 0xC4, 0xE2, 0x7B, 0x4B, 0x06", "needs a SIB byte (base + stride)"),
    "no_sib_rip": (FULL, ".byte 0xC4, 0xE2, 0x7A, 0x4B, 0x05, 0, 0, 0, 0", "needs a SIB byte"),
    "narrow_address": (FULL, ".byte 0x67\ntileloadd (%rsi,%rdx), %tmm1", "prefix 67"),
    "segment": (FULL, ".byte 0x64\ntileloadd (%rsi,%rdx), %tmm1", "relative to fs or gs"),
}


@functools.cache
def routines() -> ctypes.CDLL:
    """One routine per case (config, memory, stride): configures, runs the case, returns 42."""
    texts = {}
    for name, (config, instruction, _) in CASES.items():
        configure = "" if config is None else "ldtilecfg (%rdi)"
        body = f"{instruction}\nafter_{name}:" if instruction != "nop" else ""
        texts[name] = f"{configure}\n{body}\ntilerelease\nmovl $42, %eax"
    texts["good"] = "ldtilecfg (%rdi)\ntilezero %tmm0\ntileloadd (%rsi,%rdx), %tmm1\ntilerelease"
    texts["good_t1"] = texts["good"].replace("tileloadd", "tileloaddt1")
    texts["leaves_configured"] = "ldtilecfg (%rdi)"
    texts["release"] = "tilerelease"
    return assembled(texts)


def call(name: str) -> int:
    """Runs a routine with its case's configuration, or the full one if the case has none."""
    config = CASES[name][0] if name in CASES else None
    config = FULL if config is None else config
    memory = np.zeros(2048, np.uint8)
    arguments = config.ctypes.data, memory.ctypes.data, 64
    return int(routines()[name](*map(ctypes.c_void_p, arguments)))


@pytest.mark.parametrize("name", CASES)
def test_a_fault_says_what_is_wrong_and_where(name: str) -> None:
    config, instruction, expected = CASES[name]
    assert call(name) == 42
    assert emulator.errors() == 1
    message = emulator.last_error()
    assert message == emulator.first_error() and expected in message
    assert f" at rip 0x{_address(name, instruction != 'nop' and config is not None):x}:" in message
    configured = config is not None and instruction != "nop" and config[0]
    if configured:
        assert config is not None
        shapes = re.findall(r"tmm(\d) (\d+)x(\d+)", message.split("configuration")[-1])
        wanted = [(t, config[48 + t], config[16 + 2 * t]) for t in range(8)]
        assert [tuple(map(int, shape)) for shape in shapes] == wanted
    else:
        assert message.endswith("no configuration")
    emulator.reset()


def _address(name: str, second: bool) -> int:
    """The faulting instruction's address: after `ldtilecfg (%rdi)` of five bytes, or first."""
    begin = ctypes.cast(routines()[name], ctypes.c_void_p).value
    assert begin is not None
    return begin + 5 * second


def test_a_message_names_the_instruction_and_its_tiles() -> None:
    for name, words in (
        ("k", "tdpbusd tmm0, tmm1, tmm2 at"),
        ("empty_tile", "tilezero tmm6 at"),
        ("start_row", "tileloadd tmm1 at"),
        ("palette", "ldtilecfg at"),
    ):
        call(name)
        assert words in emulator.last_error()
    assert emulator.errors() == 4 and "tdpbusd" in emulator.first_error()
    emulator.reset()
    assert (emulator.errors(), emulator.first_error(), emulator.last_error()) == (0, "", "")


def test_a_configuration_that_faults_changes_nothing() -> None:
    call("leaves_configured")
    call("reserved")
    assert "tmm0 16x64" in emulator.last_error()
    assert emulator.threads_configured() == 0  # the second call released its configuration
    emulator.reset()


def test_instructions_are_counted() -> None:
    expected = dict.fromkeys(emulator.counts_by_name(), 0)
    assert len(expected) == 13 and emulator.counts_by_name() == expected
    for _ in range(3):
        call("good")
    for name in ("ldtilecfg", "tilezero", "tileloadd", "tilerelease"):
        expected[name] = 3
    assert emulator.counts_by_name() == expected
    assert 1 <= emulator.traps() <= 12
    emulator.reset()
    assert emulator.counts_by_name() == dict.fromkeys(expected, 0) and emulator.traps() == 0


def test_loads_with_a_hint_count_as_loads() -> None:
    call("good")
    call("good_t1")
    named, counts = emulator.counts_by_name(), emulator.counts()
    assert (named["tileloadd"], named["tileloaddt1"]) == (1, 1)
    assert counts is not None and counts["tileloadd"] == 2 and "tileloaddt1" not in counts
    emulator.reset()


def test_instructions_at_fault_are_not_counted() -> None:
    call("same_factors")
    counts = emulator.counts()
    assert counts is not None
    assert counts["tdpbssd"] == 0 and counts["ldtilecfg"] == counts["tilerelease"] == 1
    emulator.reset()


def test_threads_that_stay_configured_are_counted() -> None:
    call("leaves_configured")
    call("leaves_configured")
    assert emulator.threads_configured() == 1
    threads = [threading.Thread(target=call, args=("leaves_configured",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert emulator.threads_configured() == 4  # the end of a thread releases nothing
    call("release")
    assert emulator.threads_configured() == 3
    with pytest.raises(emulator.EmulatorError, match="3 threads hold a tile configuration"):
        emulator.check()
    emulator.reset()
    assert emulator.threads_configured() == 0


def test_a_reset_forgets_earlier_configurations() -> None:
    call("leaves_configured")
    emulator.reset()
    assert emulator.threads_configured() == 0
    call("release")
    assert emulator.threads_configured() == 0
    call("leaves_configured")
    assert emulator.threads_configured() == 1
    call("release")
    assert emulator.threads_configured() == 0


def test_running_reports_what_went_wrong() -> None:
    with (
        pytest.raises(emulator.EmulatorError, match=r"1 faults; the first: .*K differs"),
        emulator.running() as running,
    ):
        assert running is emulator
        call("k")
    with pytest.raises(emulator.EmulatorError, match="tilerelease"), emulator.running():
        call("leaves_configured")
    with emulator.running():
        call("release")


def test_on_hardware_nothing_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "_cpu_has_amx", lambda: True)
    assert not emulator.available() and not emulator.install()
    assert emulator.counts() is None and emulator.errors() == 0
    with pytest.raises(emulator.EmulatorError, match="denies tile data"), emulator.running():
        pass


def test_the_library_looks_at_the_cpu_itself() -> None:
    assert not emulator.library().amx_emulator_cpu_has_amx()

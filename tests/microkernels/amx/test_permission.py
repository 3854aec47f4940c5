"""Permission to use tiles: Linux's answers, what they mean, and the check in generated code."""

from __future__ import annotations

import ctypes
import errno
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm.tirx.script.builder.ir as I
from tvm.script.ir_builder import IRBuilder
from tvm.support import cc

from microkernels.amx import permission as amx_permission
from microkernels.amx.permission import REFUSALS, Permission, emit_permission_check, tile_permission
from microkernels.base.tvm_compat.tir import NO_ALIAS
from tests.linux_answers import where_linux_answers

ANSWERS = [*(code for code in REFUSALS if code is not None), errno.EPERM]


def compile_guarded() -> Any:
    """A function that checks the permission and then stores 7."""
    with IRBuilder() as builder, I.prim_func():
        I.func_name("guarded")
        I.func_attr({**NO_ALIAS, "global_symbol": "guarded"})
        out = I.arg("out", I.buffer((1,), "int32"))
        emit_permission_check()
        I.buffer_store(out, I.int32(7), [0])
    return tvm.compile(tvm.IRModule({"guarded": builder.get()}), target={"kind": "llvm"})


def call(module: Any) -> int:
    out = np.zeros(1, np.int32)
    module["guarded"](out)
    return int(out[0])


@pytest.fixture
def unemulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without an emulator, and before Linux has been asked."""
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: False)
    amx_permission._ask_linux.cache_clear()
    yield
    amx_permission._ask_linux.cache_clear()


def test_the_permission_is_asked_for_and_remembered(unemulated: None) -> None:
    assert where_linux_answers(0, tile_permission) == Permission("granted")
    assert where_linux_answers(errno.EPERM, tile_permission) == Permission("granted")
    assert tile_permission().usable


@pytest.mark.parametrize("code", ANSWERS)
def test_a_refusal_depends_on_the_cpu(
    code: int, unemulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amx_permission, "host_flags", lambda: frozenset({"amx_tile"}))
    denied = where_linux_answers(code, tile_permission)
    assert denied == Permission("denied", code) and not denied.usable
    assert errno.errorcode[code] in denied.reason
    assert REFUSALS.get(code, REFUSALS[None]) in denied.reason
    monkeypatch.setattr(amx_permission, "host_flags", frozenset)
    assert tile_permission() == Permission("absent")
    assert not tile_permission().usable


def test_an_emulator_stands_for_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: True)
    assert tile_permission() == Permission("emulated") and tile_permission().usable


def test_a_function_of_another_name_is_no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx_permission, "EMULATOR", "no_such_emulator")
    assert not amx_permission._emulator_is_active()
    monkeypatch.setattr(amx_permission, "EMULATOR", "getpid")  # nonzero, like an active emulator
    assert amx_permission._emulator_is_active()


def look_for(symbol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes generated code look for the emulator by another name of the same length."""
    text = amx_permission.PERMISSION_LLVM_IR
    assert text.count("amx_emulator_active") == 1 and len(symbol) == len("amx_emulator_active")
    text = text.replace("amx_emulator_active", symbol)
    monkeypatch.setattr(amx_permission, "PERMISSION_LLVM_IR", text)


def test_code_reports_what_linux_answers_until_it_is_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    look_for("amx_emulator_absent", monkeypatch)
    module = compile_guarded()
    for code in ANSWERS:
        with pytest.raises(RuntimeError) as caught:
            where_linux_answers(code, functools.partial(call, module))
        assert REFUSALS.get(code, REFUSALS[None]) in str(caught.value)
        assert "needs AMX tiles" in str(caught.value)
    assert where_linux_answers(0, lambda: call(module)) == 7
    # The answer is cached: Linux would now refuse.
    assert where_linux_answers(errno.EPERM, lambda: call(module)) == 7


def test_code_trusts_an_emulator_while_it_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_for("amx_emulator_switch", monkeypatch)
    module = compile_guarded()
    source, library = tmp_path / "switch.cc", tmp_path / "switch.so"
    source.write_text(
        'extern "C" { int amx_on = 1; int amx_emulator_switch(void) { return amx_on; } }'
    )
    cc.create_shared(str(library), [str(source)])
    # Loaded after the compiled code.
    switch = ctypes.c_int.in_dll(ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL), "amx_on")
    assert where_linux_answers(errno.EPERM, lambda: call(module)) == 7
    switch.value = 0
    with pytest.raises(RuntimeError, match="needs AMX tiles"):
        where_linux_answers(errno.EPERM, lambda: call(module))

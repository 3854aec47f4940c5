"""An exported library with AMX kernels asks Linux itself and refuses with a clear message."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tvm.support import cc

from microkernels.amx.permission import ADVICE, REFUSALS, Permission
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tests.tvm_hybrid.small_models import mlp
from tvm_hybrid.errors import IsaError
from tvm_hybrid.library import export as library
from tvm_hybrid.targets import cpu_features
from tvm_hybrid.targets.cpu_features import (
    AMX_STATE,
    FEATURES,
    CpuFeature,
    missing_on_host,
    require_host,
)

from .test_cpu_guard import message

pytestmark = pytest.mark.turns

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
AMX = ("amx-tile", "amx-int8")


def linked(folder: Path) -> Path:
    """The MLP as a library that claims to need AMX."""
    output = folder / "m.so"
    program = replace(mlp().program(), cpu="sapphirerapids", features=AMX)
    library.link_library(output, [program])
    return output


@pytest.fixture
def cpu_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards check a feature that every CPU has instead of each AMX feature."""
    for name in AMX:
        sse = CpuFeature(name, "pni", 1, 0, "ecx", 0, AMX_STATE)
        monkeypatch.setitem(FEATURES, name, sse)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPERM])
def test_a_denial_is_reported_with_its_reason(
    code: int, cpu_with_amx: None, tmp_path: Path
) -> None:
    done = run_on_runtime_alone(linked(tmp_path), X, tmp_path, answer=code)
    assert message(done) == (
        "RuntimeError: this library was compiled by tvm_hybrid for sapphirerapids and needs AMX "
        f"tiles, and Linux denies them: {REFUSALS.get(code, REFUSALS[None])}; {ADVICE}"
    )


def test_with_permission_the_library_runs(cpu_with_amx: None, tmp_path: Path) -> None:
    done = run_on_runtime_alone(linked(tmp_path), X, tmp_path, answer=0)
    assert message(done) == "[]"
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), mlp().run(X)[0].numpy())


@pytest.mark.parametrize("active", [0, 1])
def test_an_emulator_stands_for_cpu_and_permission(active: int, tmp_path: Path) -> None:
    source, emulator = tmp_path / "emulator.cc", tmp_path / "emulator.so"
    source.write_text(f'extern "C" int amx_emulator_active(void) {{ return {active}; }}')
    cc.create_shared(str(emulator), [str(source)])
    done = run_on_runtime_alone(linked(tmp_path), X, tmp_path, errno.EPERM, preload=emulator)
    if active:
        assert message(done) == "[]"
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), mlp().run(X)[0].numpy())
    else:
        assert "RuntimeError: this library was compiled" in message(done)


def permission(monkeypatch: pytest.MonkeyPatch, state: str, *flags: str, code: int = 0) -> None:
    """Python's view: Linux's answer, and the CPU's other features."""
    monkeypatch.setattr(cpu_features, "tile_permission", lambda: Permission(state, code))
    monkeypatch.setattr(cpu_features, "host_flags", lambda: frozenset(flags))


def test_python_tells_denied_from_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("avx2", *AMX)
    permission(monkeypatch, "denied", "avx2", "amx_tile", "amx_int8", code=errno.ENOSPC)
    assert missing_on_host(names) == list(AMX)
    with pytest.raises(
        IsaError, match=r"m\.so .* needs AMX tiles; Linux denies .*\(ENOSPC\).*signal"
    ):
        require_host(names, "m.so", "sapphirerapids")
    permission(monkeypatch, "denied", "amx_tile", "amx_int8", code=errno.ENOSPC)
    with pytest.raises(IsaError, match="needs avx2, which this CPU lacks"):
        require_host(names, "m.so", "sapphirerapids")
    permission(monkeypatch, "absent", "avx2")
    with pytest.raises(IsaError, match="needs amx-tile, amx-int8, which this CPU lacks"):
        require_host(names, "m.so", "sapphirerapids")


def test_python_takes_granted_and_emulated_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    permission(monkeypatch, "granted", "amx_tile", "amx_int8", "amx_fp16")
    assert missing_on_host((*AMX, "amx-bf16", "amx-fp16")) == ["amx-bf16"]
    permission(monkeypatch, "emulated")
    assert missing_on_host((*AMX, "amx-bf16", "amx-fp16")) == []

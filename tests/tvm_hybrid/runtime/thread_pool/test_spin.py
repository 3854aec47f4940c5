"""How long threads spin: the option `spin`, its default, and that workers sleep."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import pytest

import tvm_hybrid
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tests.tvm_hybrid.runtime.thread_pool.regions import native_threads, pool, told_of, wait_until
from tests.tvm_hybrid.runtime.thread_pool.wide_model import check, wide_session
from tests.tvm_hybrid.small_models import mlp_module
from tvm_hybrid.cli import main
from tvm_hybrid.errors import ArtifactError, TargetError
from tvm_hybrid.runtime import threads
from tvm_hybrid.runtime.thread_pool.native import SPINS, resolve_spin

X = np.ones((1, 16), np.float32)


def test_the_environment_says_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TVM_HYBRID_SPIN", "TVM_THREAD_POOL_SPIN_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert resolve_spin(None) == "run"
    monkeypatch.setenv("TVM_THREAD_POOL_SPIN_COUNT", "0")
    assert resolve_spin(None) == "never"
    monkeypatch.setenv("TVM_HYBRID_SPIN", "always")
    assert (resolve_spin(None), resolve_spin("run")) == ("always", "run")
    monkeypatch.setenv("TVM_HYBRID_SPIN", "often")
    with pytest.raises(TargetError, match=r"TVM_HYBRID_SPIN must be .*'never', not 'often'"):
        resolve_spin(None)


def test_what_is_no_spin_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    for use in (tvm_hybrid.compile, tvm_hybrid.InferenceSession):
        with pytest.raises(TargetError, match=r"spin must be one of 'run', .*not 'often'"):
            use(tmp_path / "none", spin="often")
    assert main(["run", str(tmp_path / "none.onnx"), "--spin", "often"]) == 2


def test_a_program_says_how_its_threads_wait_and_its_library_does_not(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(), num_threads=2, spin="always")
    assert executable.spin == "always"
    path = executable.export(tmp_path / "two.so")
    assert tvm_hybrid.load(path).spin == resolve_spin(None)
    for spin in SPINS:
        session = tvm_hybrid.InferenceSession(path, spin=spin)
        session.run(None, {"x": X})
        assert threads.current.setting.spin == session.executable.spin == spin
    with pytest.raises(ArtifactError, match="give threads, weights and spin there"):
        tvm_hybrid.InferenceSession(executable, spin="run")


def test_one_program_is_kept_for_every_spin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_HYBRID_CACHE", "1")
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path / "cache"))
    path = saved(tmp_path, two_layers())
    for spin in SPINS:
        session = tvm_hybrid.InferenceSession(path, num_threads=2, spin=spin)
        assert session.executable.spin == spin
    assert len(list((tmp_path / "cache").rglob("*.so"))) == 1


def busy() -> float:
    """CPU seconds of the pool's threads."""
    told = (told_of(each, "schedstat") for each in native_threads())
    return sum(int(each.split()[0]) for each in told if each) / 1e9


def sleep_all(seconds: float = 0.1) -> bool:
    """Whether no thread of the pool runs for some time."""
    before = busy()
    time.sleep(seconds)
    return busy() == before


@pytest.mark.parametrize("spin", ["run", "never"])
def test_workers_sleep_between_runs(spin: str) -> None:
    check(wide_session(spin=spin))
    assert wait_until(sleep_all)


def test_workers_stay_awake_as_long_as_a_program_wants_them_to() -> None:
    pool()
    held = [wide_session(spin="always")]

    def awake() -> bool:
        check(held[0])  # a worker may have missed the previous one
        before = busy()
        time.sleep(0.1)
        return busy() - before > 0.01

    assert wait_until(awake)
    held.clear()
    gc.collect()
    assert wait_until(sleep_all)

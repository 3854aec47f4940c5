"""Servers measure side by side; whatever happens, each candidate has one result."""

from __future__ import annotations

import logging
import signal
from types import ModuleType

import pytest

from tvm_hybrid.tuning.measure import Measurement
from tvm_hybrid.tuning.rpc.measurer import RpcMeasurer
from tvm_hybrid.tuning.sampling import Effort

from .conftest import COUNT, Servers

QUICK = Effort(samples=4, seconds=0.1)
LONG = Effort(samples=10000, seconds=0.6)


def measure(measurer: RpcMeasurer, toy: ModuleType, *modes: str) -> list[tuple[str, Measurement]]:
    configs = [toy.ToyConfig(block=16, mode=mode) for mode in modes]
    found = measurer.measure(toy.region(), toy.TOY, configs, toy.ToyConfig(block=8), QUICK)
    return [(config.to_dict()["mode"], measurement) for config, measurement in found]


def test_each_candidate_has_its_result(
    measurer: RpcMeasurer, servers: Servers, toy: ModuleType
) -> None:
    modes = ("right", "wrong", "raise", "segfault", "right")
    found = measure(measurer, toy, *modes)
    assert sorted(mode for mode, _ in found) == sorted(modes)
    expected = {
        "right": ("ok", ""),
        "wrong": ("wrong_result", "64 of 64 elements are wrong; the first at (0,)"),
        "raise": ("compile_error", "RuntimeError: this candidate cannot be built"),
        "segfault": ("runtime_error", "died of SIGSEGV in stage 'try here'"),
    }
    for mode, measured in found:
        status, error = expected[mode]
        assert measured.status == status and error in measured.error
        if mode == "right":
            assert len(measured.times_us) == len(measured.baseline_times_us) >= 3
            assert min(measured.times_us) > 0 and measured.ratio is not None
    assert servers.count() == COUNT


def test_lost_servers_cost_no_candidate(
    measurer: RpcMeasurer,
    servers: Servers,
    toy: ModuleType,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One is killed and one frozen while they measure."""
    configs = [toy.ToyConfig(block=block) for block in (1, 2, 4, 8, 16, 32, 64)]
    found = []
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        for config, measured in measurer.measure(toy.region(), toy.TOY, configs, configs[3], LONG):
            found.append(config.to_dict()["block"])
            assert (measured.status, measured.error) == ("ok", "")
            if len(found) == 1:
                servers.signal_a_busy_one(signal.SIGKILL)
            if len(found) == 2:
                servers.signal_a_busy_one(signal.SIGSTOP)
    assert sorted(found) == [config.block for config in configs]
    lost = [record.getMessage() for record in caplog.records if "server lost" in record.msg]
    assert len(lost) == 2 and "does not answer" in lost[1]

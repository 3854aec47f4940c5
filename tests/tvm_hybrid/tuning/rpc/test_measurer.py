"""Servers measure in parallel; whatever happens to them, each candidate has one result."""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import pytest

from microkernels.base.errors import ServerError
from microkernels.isa import CAP_VARIABLE
from tir_schedules.core.region import Region, Tensor
from tvm_hybrid.records.record_store import RecordStore, config_key
from tvm_hybrid.tuning.measuring.measure import Candidates, Measurement
from tvm_hybrid.tuning.measuring.sampling import Effort
from tvm_hybrid.tuning.rpc.measurer import RpcMeasurer, find_servers
from tvm_hybrid.tuning.tune_regions import tune_regions
from tvm_hybrid.tuning.tune_result import Trial
from tvm_hybrid.tuning.tuning_task import Plan

from .conftest import COUNT, Servers, make_measurer

pytestmark = pytest.mark.turns

QUICK = Effort(samples=4, seconds=0.1)
LONG = Effort(samples=10000, seconds=0.6)


def measure(measurer: RpcMeasurer, toy: ModuleType, *modes: str) -> list[tuple[str, Measurement]]:
    configs = [toy.ToyConfig(block=16, mode=mode) for mode in modes]
    found = measurer.measure(
        Candidates(toy.region(), toy.TOY, configs, toy.ToyConfig(block=8), QUICK)
    )
    return [(config.to_dict()["mode"], measurement) for config, measurement in found]


def test_each_candidate_has_its_result(
    measurer: RpcMeasurer, servers: Servers, toy: ModuleType
) -> None:
    modes = ("right", "raise", "segfault", "right")
    found = measure(measurer, toy, *modes)
    assert sorted(mode for mode, _ in found) == sorted(modes)
    expected = {
        "right": ("ok", ""),
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


def test_what_goes_wrong_at_a_server_costs_no_server(
    servers: Servers, toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is told that it cannot run the code, so it tries nothing before the server."""
    with make_measurer(servers.address, workers=1, session_seconds=2.0) as measurer:
        monkeypatch.setenv(CAP_VARIABLE, "scalar")
        found = dict(measure(measurer, toy, "wrong", "hang", "segfault", "right"))
    assert found["right"].status == "ok"
    assert found["wrong"].status == "wrong_result"
    assert found["hang"].status == "timeout" and "not done after 2.1 s at" in found["hang"].error
    assert found["segfault"].status == "runtime_error"
    assert "2 servers or workers were lost with it" in found["segfault"].error
    assert servers.count() == COUNT


def test_a_batch_that_nobody_reads_to_its_end(
    measurer: RpcMeasurer, servers: Servers, toy: ModuleType
) -> None:
    """Its workers end with their sessions, and the servers go on."""
    configs = [toy.ToyConfig(block=block) for block in (1, 2, 4)]
    batch = measurer.measure(Candidates(toy.region(), toy.TOY, configs, None, LONG))
    _, first = next(batch)
    assert isinstance(batch, Generator)
    batch.close()
    assert first.status == "ok" and first.baseline_us is None
    ((_, again),) = measurer.measure(Candidates(toy.region(), toy.TOY, configs[:1], None, QUICK))
    assert again.status == "ok"
    assert servers.count() == COUNT


@pytest.mark.slow
def test_lost_servers_cost_no_candidate(
    servers: Servers, toy: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """One is killed and one frozen while they measure; the others have time, on any machine."""
    configs = [toy.ToyConfig(block=block) for block in (2, 4, 8, 16, 32)]
    found = []
    with (
        caplog.at_level(logging.WARNING, "tvm_hybrid"),
        make_measurer(servers.address, workers=2) as measurer,
    ):
        for config, measured in measurer.measure(
            Candidates(toy.region(), toy.TOY, configs, configs[2], LONG)
        ):
            found.append(config.to_dict()["block"])
            assert (measured.status, measured.error) == ("ok", "")
            if len(found) == 1:
                servers.signal_a_busy_one(signal.SIGKILL)
            if len(found) == 2:
                servers.signal_a_busy_one(signal.SIGSTOP)
    assert sorted(found) == [config.block for config in configs]
    lost = [record.getMessage() for record in caplog.records if record.msg.startswith("lost,")]
    assert len(lost) == 2 and any("does not answer, in stage 'measure'" in text for text in lost)


def test_tuning_goes_on_when_a_server_is_killed(
    measurer: RpcMeasurer, servers: Servers, tmp_path: Path
) -> None:
    """Every trial has one line, and the lines name the servers' CPU."""
    kinds = find_servers(servers.address)
    assert (kinds.cpu, kinds.threads) == (measurer.machine.name, 1)
    region = Region(
        op="matmul",
        inputs=(Tensor((16, 32), "float32"), Tensor((32, 64), "float32", True)),
        output=Tensor((16, 64), "float32"),
    )
    store = RecordStore(tmp_path / "r.jsonl", must_exist=False)
    seen: list[Trial] = []
    last = servers.pids[-1]

    def kill(trial: Trial) -> None:
        seen.append(trial)
        if trial.record is not None and last in servers.pids:
            servers.send(last, signal.SIGKILL)

    plan = Plan(strategy="random", trials=7, batch=4, min_gain=0, finals=False)
    tune_regions([(region, 1)], measurer.machine, measurer, store, plan, [kill])
    records = [located.record for located in RecordStore(tmp_path / "r.jsonl")]
    assert len(records) == 7 == len({config_key(record.config) for record in records})
    assert {(record.status, record.machine, record.threads) for record in records} == {
        ("ok", kinds.cpu, 1)
    }
    assert seen
    servers.wait_for(COUNT - 1)


def test_no_server_is_left(
    measurer: RpcMeasurer, servers: Servers, toy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in list(servers.pids):
        servers.send(pid, signal.SIGKILL)
    monkeypatch.setattr(measurer, "patience", 0.5)
    start = "start some: python -m tvm.exec.rpc_server --tracker 127.0.0.1:[0-9]+ --key loopback"
    with pytest.raises(ServerError, match=f"no server with the key 'loopback' for 0.5 s; {start}"):
        measure(measurer, toy, "right")
    with pytest.raises(ServerError, match=f"no server with the key 'loopback' for 0.2 s; {start}"):
        find_servers(servers.address, 0.2)

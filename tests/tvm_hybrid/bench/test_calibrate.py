"""Calibration writes a description that loads and contains plausible numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from microkernels.base.files import CACHE_VARIABLE
from microkernels.base.host_cpu import host_cpu
from microkernels.isa import host_isa, isa_named
from microkernels.machines.description import describe, read_description
from microkernels.machines.host import MACHINE_VARIABLE
from microkernels.machines.machine import Machine
from tvm_hybrid.bench.calibrate import LARGEST, measure_numbers
from tvm_hybrid.cli import main
from tvm_hybrid.targets.resolve import host_target


@pytest.mark.parametrize("largest", [64 << 20, pytest.param(LARGEST, marks=pytest.mark.slow)])
def test_a_description_of_this_machine(
    largest: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers are plausible, also if the largest weight fits in L3."""
    monkeypatch.setattr("tvm_hybrid.bench.calibrate.LARGEST", largest)
    path = tmp_path / "mine.json"
    assert main(["calibrate", "--threads", "2", "--output", str(path)]) == 0
    assert f"written to {path}" in " ".join(capsys.readouterr().out.split())
    found = read_description(path)
    width = 512 if host_isa().f32_lanes == 16 else 256
    clocks = {"clock_scalar", "clock_256", f"clock_{width}"}
    if host_isa().includes(isa_named("amx")):
        clocks.add("clock_tiles")
    shipped = describe(host_cpu()).numbers
    measured = {*clocks, "l2_rate", "l3_rate", "memory_rate", "fork_us"}
    measured |= {"fma_latency", f"load_rate_{width}"}
    measured = {name for name in measured if shipped[name].kind not in ("manual", "data sheet")}
    assert {name for name, origin in found.origins.items() if origin == str(path)} == measured
    assert all(found.numbers[name].kind == "measured" for name in measured)
    assert all(500 < found.at(clock) < 10_000 for clock in clocks)
    # Forking tasks without waking a worker would take a fiftieth of a microsecond.
    assert found.at("fork_us", 1) == 0 and 0.1 < found.at("fork_us", 2) < 1000
    for rate in ("l3_rate", "memory_rate"):
        assert 100 < found.at(rate, 1) < 1e6 and 100 < found.at(rate, 2) < 2e6

    assert not {"clock_256", "l3_rate", "fork_us"} & set(found.guesses(tiles=True))
    monkeypatch.setenv(MACHINE_VARIABLE, str(path))
    assert Machine.from_target(host_target(), 2).memory_rate(2) == pytest.approx(
        min(found.at("memory_rate", 1), found.at("memory_rate", 2) / 2)
    )
    main(["doctor"])
    assert str(path.name) in capsys.readouterr().out


def test_loops_of_a_core_take_as_long_as_they_say() -> None:
    """Rates are plausible: dependent chains take some cycles a step, nearer caches are faster."""
    numbers = measure_numbers(1)
    width = 512 if host_isa().f32_lanes == 16 else 256
    assert 500 < numbers["clock_scalar"].at(1) < 10_000
    assert 2 < numbers["fma_latency"].at(1) < 20
    loaded = numbers[f"load_rate_{width}"].at(1) * width / 8
    assert 1 < loaded < 300 and numbers["l2_rate"].at(1) < 1.5 * loaded
    assert all(number.kind == "measured" for number in numbers.values())


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["calibrate", "--output", str(tmp_path / "nowhere" / "mine.json")]) == 2
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    assert main(["calibrate"]) == 2

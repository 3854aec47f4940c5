"""Recordings of matrix products with simulated times: smooth over the knobs, some failing."""

from __future__ import annotations

import lzma
import random
from pathlib import Path

import msgspec

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for
from tvm_hybrid.records.record import Record, make_record
from tvm_hybrid.records.record_store import ConfigSpace
from tvm_hybrid.tuning.recordings.simulate import Recording, load_recordings

MACHINE = Machine("here", isa_named("avx2"))


def product(rows: int = 16, inner: int = 64, columns: int = 64) -> Region:
    """A float32 product with a constant weight."""
    return Region(
        op="matmul",
        inputs=(Tensor((rows, inner), "float32"), Tensor((inner, columns), "float32", True)),
        output=Tensor((rows, columns), "float32"),
    )


def synthetic_records(region: Region, default_over_best: float = 1.25) -> list[Record]:
    """A record of every configuration; the second one fails.

    One configuration, drawn by the region's key, is the best; times grow with the distance to it on
    the grid of knobs.
    """
    template = template_for(region.op)
    space = ConfigSpace.of(region, template, MACHINE)
    best = random.Random(region.key).randrange(2, len(space))
    away = abs(space.points - space.points[best]).sum(axis=1)
    times = 100.0 * (1 + 0.1 * away)
    times[0] = 100.0 * default_over_best
    records = []
    for config, time in zip(space.configs, times, strict=True):
        record = make_record(
            region, template, MACHINE, config, "ok", [float(time)], float(times[0])
        )
        records.append(record)
    records[1] = msgspec.structs.replace(
        records[1], status="wrong_result", times_us=[], baseline_us=None, error="off by one"
    )
    return records


def write_recording(path: Path, records: list[Record]) -> Path:
    """Writes a record file, compressed if its name says so."""
    text = b"".join(record.to_line() for record in records)
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)
    return path


def load_recording(source: str | Path) -> Recording:
    """The recording in a file with exactly one."""
    (recording,) = load_recordings(source)
    return recording

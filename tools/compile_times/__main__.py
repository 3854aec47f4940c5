"""Measures how long models take until they answer: `python -m tools.compile_times`."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from .corpus import NAMES
from .starts import as_json, cache_folder, made, start


@click.command()
@click.option("--models", default=",".join(NAMES))
@click.option("--threads", default=1)
@click.option("--timeout", default=60.0)
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(models: str, threads: int, timeout: float, output: Path | None) -> None:
    """Prints what every start took."""
    rows = {}
    for name in models.split(","):
        with TemporaryDirectory() as folder, cache_folder() as cache:
            files = made(name, Path(folder) / "first")
            cold = start("tvm_hybrid", files, threads, timeout, cache)
            theirs = start("onnxruntime", files, threads, timeout)
        rows[name] = {"cold": as_json(cold), "onnxruntime": as_json(theirs)}
        print(name, f"{cold.total().cpu:.1f} CPU s", cold.fault, f"ORT {theirs.total(False).cpu:.2f}")
        for title, (cpu, wall) in cold.stages.items():
            print(f"    {cpu:7.2f} {wall:7.2f} {title}")
        print("   ", {k: round(v, 2) for k, v in cold.parts.items()}, cold.counts, cold.peak_mb, flush=True)
    if output:
        output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

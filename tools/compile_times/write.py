"""Writes a model of the corpus: `python -m tools.compile_times.write yolo FOLDER`."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import onnx

from .corpus import build
from .feeds import feeds_of


@click.command()
@click.argument("name")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--second", is_flag=True, help="With another head.")
def main(name: str, folder: Path, second: bool) -> None:
    """Writes model.onnx and feeds.npz."""
    model = build(name, second)
    onnx.save(model.proto, folder / "model.onnx")
    np.savez(folder / "feeds.npz", **feeds_of(model))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

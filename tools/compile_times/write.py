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
@click.option("--relative", default="", help="Another head, or another batch.")
def main(name: str, folder: Path, relative: str) -> None:
    """Writes model.onnx and feeds.npz."""
    model = build(name, relative)
    onnx.save(model.proto, folder / "model.onnx")
    np.savez(folder / "feeds.npz", **feeds_of(model))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

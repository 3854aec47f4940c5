"""Shows how kernels, results and speed of a model differ by door.

    python -m tools.doors                          # all models, in float32
    python -m tools.doors bert vit --dtype bf16
    taskset -c 1 python -m tools.doors --large --speed

Kernels and times are compared with those of the ONNX door. Errors are the largest difference from
torch in float64, over the largest magnitude.
"""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table

from tvm_hybrid.errors import TvmHybridError

TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


@click.command()
@click.argument("names", nargs=-1)
@click.option("--dtype", type=click.Choice(list(TYPES)), default="f32", show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option(
    "--small", is_flag=True, help="Use small versions of the large models: few and narrow layers."
)
@click.option("--large", is_flag=True, help="Compare only the large models.")
@click.option("--speed", is_flag=True, help="Also measure the time of a call, in turns.")
def main(
    names: tuple[str, ...], dtype: str, threads: int, small: bool, large: bool, speed: bool
) -> None:
    """Compares the kernels, results and speed of models that come from ONNX and PyTorch.

    Prints a table, and the kernels that differ.
    """
    try:
        import onnxscript  # type: ignore[import-not-found] # noqa: F401
        import torch
    except ImportError as missing:
        sys.exit(f"Error: {missing.name} is missing: pip install -e .[torch] onnxscript")
    from .torch_models import LARGE, NAMES

    torch.set_num_threads(threads)
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"Error: no model {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    console = Console()
    for name in names or (LARGE if large else NAMES):
        _compare(console, name, TYPES[dtype], small, threads, speed)


def _compare(
    console: Console, name: str, dtype: str, small: bool, threads: int, speed: bool
) -> None:
    from .compare import differences, error, kernels, least_times, ran, reference
    from .through import DOORS
    from .torch_models import torch_model

    model = torch_model(name, dtype, small)

    table = Table(title=name, title_justify="left")
    for column in (
        "door",
        "kernels",
        "not as ONNX",
        "error",
        *(["ms", "of ONNX"] if speed else []),
    ):
        table.add_column(column, justify="right")
    executables, refused = {}, {}
    for door, through in DOORS.items():
        try:
            found = through(name, model, threads)
        except TvmHybridError as refusal:
            refused[door] = str(refusal)
        else:
            if found is not None:
                executables[door] = found
    wanted = reference(model)
    times = least_times(executables, model) if speed else {}
    base = kernels(executables["ONNX"].explain()) if "ONNX" in executables else None
    notes = [f"{door}: refused: {reason}" for door, reason in refused.items()]
    for door, executable in executables.items():
        own = kernels(executable.explain())
        lines = differences(own, base) if base is not None else []
        notes += [f"{door}: {line}" for line in lines]
        cells = [f"{error(ran(executable, model), wanted):.1e}"]
        if speed:
            ratio = times[door] / times["ONNX"] if "ONNX" in times else float("nan")
            cells += [f"{times[door] * 1e3:.3f}", f"{ratio:.3f}"]
        table.add_row(door, str(own.total()), str(len(lines)), *cells)
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()

"""Compares the speed of text generation with other engines.

    taskset -c 1 python -m tools.decoding decoder.onnx --pasts 8,200,1000    # beside ONNX Runtime
    python -m tools.decoding --peers llama.cpp,openvino,ctranslate2          # a seeded Llama
    python -m tools.decoding --peers onnxruntime --models 110M --kinds f32 --output table.json

Without a model it prints a table for each size of a seeded Llama, type of its weights and number of
threads, and what every engine was given. Engines come from the package index into separate
environments in the cache folder; llama.cpp is compiled there, which takes minutes. The section
`decoding` of `python -m tools.survey` stores the rows of the smaller model.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from tools.compile_times.corpus import chosen_of
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME

from .environments import PACKAGES, cpus_for, engines
from .llama import MODELS
from .onnx_files import KINDS
from .steps import compare
from .table import NOTES, Measured, markdown, measured

NAMES = {"onnxruntime": ONNX_RUNTIME, **{name.lower(): name for name in PACKAGES}}


def numbers(_context: object, _option: object, text: str) -> list[int]:
    """The numbers in a text, separated by commas."""
    return [int(each) for each in text.split(",") if each]


@click.command(help=__doc__.partition("\n")[0])
@click.argument("model", required=False, type=click.Path(exists=True))
@click.option(
    "--threads",
    default="",
    callback=numbers,
    help="Numbers of threads, with commas; default: 1, or 1,2 without MODEL.",
)
@click.option(
    "--pasts",
    default="8,200,1000",
    callback=numbers,
    help="Lengths of the past before a step of MODEL.",
)
@click.option("--prompts", default="8,200", callback=numbers, help="Lengths of prompts of MODEL.")
@click.option("--precision", default="auto", show_default=True, help="Precision of MODEL.")
@click.option(
    "--peers",
    default="",
    callback=chosen_of(NAMES),
    help="Other engines, with commas; default: all. ONNX Runtime is always measured.",
)
@click.option(
    "--models",
    default="",
    callback=chosen_of(MODELS),
    help="Sizes of the Llama model; default: all.",
)
@click.option(
    "--kinds",
    default="",
    callback=chosen_of(KINDS),
    help="Types of the Llama model's weights; default: all.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write all times to this JSON file."
)
def main(
    model: str | None,
    threads: list[int],
    pasts: list[int],
    prompts: list[int],
    precision: str,
    peers: list[str],
    models: list[str],
    kinds: list[str],
    output: Path | None,
) -> None:
    """Measures MODEL or, without it, prints the table."""
    if model is not None:
        for count in threads or [1]:
            compare(model, (count, precision), pasts, prompts)
        return
    pythons, _, missing = engines([NAMES[name] for name in peers if NAMES[name] in PACKAGES])
    for name, why in missing.items():
        click.echo(f"missing: {name}: {why}", err=True)
    rows: list[Measured] = []
    cpus = {count: cpus_for(count) for count in threads or [1, 2]}
    for name in models:
        for kind in kinds:
            for count, places in cpus.items():
                os.sched_setaffinity(0, places)
                mine = list(measured((name, MODELS[name]), kind, count, pythons))
                click.echo("\n".join(markdown(mine)))
                rows += mine
                if output is not None:  # the file is complete after every table
                    output.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    click.echo(f"\n{NOTES}")


if __name__ == "__main__":
    main()

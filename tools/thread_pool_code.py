"""Makes tvm_hybrid/thread_pool/pool.ll of pool.c: `python -m tools.thread_pool_code`.

Needs clang; TVM's LLVM reads what an older or its own version writes. Name another one with
`--clang clang-19`. The first line says of which source the code is, which a test compares.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import click

FOLDER = Path(__file__).resolve().parents[1] / "tvm_hybrid" / "thread_pool"
SOURCE = FOLDER / "pool.c"
CODE = FOLDER / "pool.ll"

# For any x86-64; small, since TVM makes machine code of it in every process that needs it.
OPTIONS = (
    *("-Os", "-march=x86-64", "-fPIC", "-std=gnu17"),
    *("-Wall", "-Wextra", "-Werror"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-ident"),
    *("-S", "-emit-llvm"),
)


def heading(source: bytes) -> str:
    """The first line of the code."""
    return f"; Made by `python -m tools.thread_pool_code` of pool.c, {_digest(source)}\n"


def _digest(source: bytes) -> str:
    return f"sha256 {hashlib.sha256(source).hexdigest()}"


def code_of(source: Path, clang: str) -> str:
    """The LLVM code of a C file, which does not depend on where that lies."""
    arguments = [clang, *OPTIONS, source.name, "-o", "-"]
    done = subprocess.run(
        arguments, cwd=source.parent, check=True, stdout=subprocess.PIPE, text=True
    )
    return heading(source.read_bytes()) + done.stdout


@click.command()
@click.option("--clang", default="clang", show_default=True, help="The compiler.")
def main(clang: str) -> None:
    """Writes pool.ll."""
    CODE.write_text(code_of(SOURCE, clang), encoding="utf-8")


if __name__ == "__main__":
    main()

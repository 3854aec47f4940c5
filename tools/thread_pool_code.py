"""Makes tvm_hybrid/runtime/thread_pool/pool.ll from pool.c and its headers.

`python -m tools.thread_pool_code` needs clang, of the version of TVM's LLVM or older; choose one
with `--clang clang-19`. The first line of the code has a hash of its sources, which a test
compares.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import click

FOLDER = Path(__file__).resolve().parents[1] / "tvm_hybrid" / "runtime" / "thread_pool"
SOURCE = FOLDER / "pool.c"
CODE = FOLDER / "pool.ll"

# For any x86-64; small, because TVM makes machine code of it in every process that needs it.
OPTIONS = (
    *("-Os", "-march=x86-64", "-fPIC", "-std=gnu17"),
    *("-Wall", "-Wextra", "-Werror"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-ident"),
    *("-S", "-emit-llvm"),
)


def sources_of(source: Path) -> list[Path]:
    """A C file, and the headers beside it, which are parts of it."""
    return [source, *sorted(source.parent.glob("*.h"))]


def heading(source: Path) -> str:
    """The first line of the code, with a hash of its sources."""
    digest = hashlib.sha256()
    for path in sources_of(source):
        digest.update(path.read_bytes())
    made = "Made by `python -m tools.thread_pool_code` of pool.c and its headers"
    return f"; {made}, sha256 {digest.hexdigest()}\n"


def code_of(source: Path, clang: str) -> str:
    """The LLVM code of a C file and its headers, which does not depend on their folder."""
    arguments = [clang, *OPTIONS, source.name, "-o", "-"]
    done = subprocess.run(
        arguments, cwd=source.parent, check=True, stdout=subprocess.PIPE, text=True
    )
    return heading(source) + done.stdout


@click.command()
@click.option("--clang", default="clang", show_default=True, help="Command of the compiler.")
def main(clang: str) -> None:
    """Compiles pool.c to LLVM code and writes pool.ll, next to pool.c."""
    CODE.write_text(code_of(SOURCE, clang), encoding="utf-8")


if __name__ == "__main__":
    main()

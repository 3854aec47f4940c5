"""Runs every case and writes which cases pass, and why the others are refused."""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from pathlib import Path

import click
import onnx

from tvm_hybrid.errors import TvmHybridError

from .cases import PASSING, all_cases, run

REFUSED = Path(__file__).with_name("refused.txt")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx_node_tests.md"
_NODE = re.compile(r"^\w+ node [^:]*: (?:the importer refuses [^:]*: )?")
_NAMES = re.compile(
    r" that makes '[^']*'| \[[\d., e-]*\](?: of \([^()]*\))?| ?'[^']*'"
    r"| ?\([^()]*(?:\([^()]*\)[^()]*)*\)"
)


def refused() -> dict[str, str]:
    """The reason of each refused case, by name."""
    return dict(line.split(": ", 1) for line in REFUSED.read_text().splitlines())


def survey() -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Runs all cases: names of passing ones, reasons of refused ones, errors of failing ones."""
    passed, refusals, failed = [], {}, {}
    for name, case in sorted(all_cases().items()):
        try:
            run(case)
            passed.append(name)
        except TvmHybridError as error:
            refusals[name] = reason(str(error))
        except Exception as error:  # any other error is a bug
            failed[name] = f"{type(error).__name__}: {error}"
    return passed, refusals, failed


def reason(message: str) -> str:
    """An error message's first line, without names and numbers of the model."""
    line = message.strip().splitlines()[0]
    return textwrap.shorten(_NAMES.sub("", _NODE.sub("", line)), 160, placeholder=" ...")


def page(passed: list[str], refusals: dict[str, str]) -> str:
    """The Markdown text of docs/onnx_node_tests.md."""
    operators = defaultdict(set)
    for name, why in refusals.items():
        model = all_cases()[name].model
        assert model is not None
        used = {node.op_type for node in model.graph.node}
        operators[why] |= used if len(used) < 4 else {"(function bodies)"}
    rows = [
        f"| {count} | {why} | {', '.join(sorted(operators[why]))} |"
        for why, count in Counter(refusals.values()).most_common()
    ]
    return "\n".join(
        [
            "<!-- Written by `python -m tests.node_tests`. Do not edit. -->",
            "# ONNX node tests",
            "",
            "The package `onnx` has tests for single operators, called node tests. This page shows",
            "how many of them tvm_hybrid passes, and why it refuses the others.",
            "",
            f"- Version of `onnx`: {onnx.__version__}, with {len(all_cases())} node tests.",
            f"- Passed: {len(passed)}. `InferenceSession` gives the expected result.",
            f"- Refused: {len(refusals)}. Compilation raises a typed error, for these reasons:",
            "",
            "| Tests | Reason | Operators |",
            "|---:|---|---|",
            *rows,
            "",
            "No test gives a wrong result. `tests/node_tests/passing.txt` and",
            "`tests/node_tests/refused.txt` list the tests.",
            "",
        ]
    )


def write() -> None:
    """Writes the lists and the page; if a case fails, prints it and writes nothing.

    Raises
    ------
    click.ClickException
        If a case gives a wrong result, or an error without a type.
    """
    passed, refusals, failed = survey()
    for name, how in failed.items():
        click.echo(f"{name}: {how}")
    if failed:
        raise click.ClickException(f"{len(failed)} cases fail")
    PASSING.write_text("\n".join([onnx.__version__, *passed, ""]))
    REFUSED.write_text("".join(f"{name}: {why}\n" for name, why in refusals.items()))
    PAGE.write_text(page(passed, refusals))
    click.echo(f"{len(passed)} pass, {len(refusals)} are refused")

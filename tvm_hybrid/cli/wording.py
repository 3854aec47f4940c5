"""Rewords errors of the library: Python's keyword arguments become options of the command line.

for example shapes={'x': (1, 128)} or shapes={'batch': 1}
for example --shape x=1x128 or --dim batch=1

give it, for example values={'axes': [1], 'k': 1}
give it, for example --value 'axes=[1]' --value k=1
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

_NAME = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_EXAMPLE = re.compile(rf"shapes=\{{({_NAME}): (\d+|\([^()]*\))\}}")
_VALUES = re.compile(r"values=(\{[^{}]*\})")
_PLACED = re.compile(r"\b(threads|weights)='([^']*)'")
_GIVEN_VALUE = re.compile(rf"\bvalues\[({_NAME})\]")
_GIVEN = re.compile(rf"shapes\[({_NAME})\](?:\[(\d+)\])?")
_OPTIONS = {
    "num_threads": "--threads",
    "check_indices": "--check-indices",
    "fast_math": "--fast-math",
    "dump_ir": "--dump-ir",
    "time_limit": "--time-limit",
    "strict: no template": "--strict: no template",
    "without strict": "without --strict",
    "shapes names": "--shape or --dim names",
    "values names": "--value names",
}
_WORD = re.compile(rf"\b({'|'.join(_OPTIONS)})\b")


def in_options(message: str, arguments: Sequence[str]) -> str:
    """A message about keyword arguments as one about options.

    Parameters
    ----------
    arguments
        What the command was given: whether a name came by `--dim` or by `--shape`.
    """
    message = _EXAMPLE.sub(_option, message)
    message = _VALUES.sub(_value_options, message)
    message = _GIVEN_VALUE.sub(
        lambda found: f"--value {shlex.quote(ast.literal_eval(found[1]))}", message
    )
    message = _GIVEN.sub(lambda found: _given(found, arguments), message)
    message = _PLACED.sub(lambda found: f"--{found[1]} {shlex.quote(found[2])}", message)
    return _WORD.sub(lambda found: _OPTIONS[found[1]], message)


def _option(found: re.Match[str]) -> str:
    """`--dim batch=1` or `--shape x=1x128`."""
    name, value = ast.literal_eval(found[1]), found[2]
    if not value.startswith("("):
        return f"--dim {shlex.quote(f'{name}={value}')}"
    sizes = [size.strip() for size in value.strip("()").split(",") if size.strip()]
    shape = "x".join(sizes) or "scalar"
    return f"--shape {shlex.quote(f'{name}={shape}')}"


def _value_options(found: re.Match[str]) -> str:
    """`--value 'axes=[1]' --value k=1`."""
    values = ast.literal_eval(found[1])
    texts = (f"{name}={json.dumps(value)}" for name, value in values.items())
    return " ".join(f"--value {shlex.quote(text)}" for text in texts)


def _given(found: re.Match[str], arguments: Sequence[str]) -> str:
    """The option that a name was given by, and which of its sizes is meant."""
    name = ast.literal_eval(found[1])
    sizes = [word.removeprefix("--dim=") for word in arguments if word.startswith("--dim=")]
    sizes += [word for before, word in pairwise(arguments) if before == "--dim"]
    by_dim = any(size.startswith(f"{name}=") for size in sizes)
    option = f"{'--dim' if by_dim else '--shape'} {shlex.quote(name)}"
    return option if found[2] is None else f"dimension {found[2]} of {option}"

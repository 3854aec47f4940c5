"""Makes the site's reference pages from docstrings and the commands' help.

`tools.docs_site` adds them to the site. They have no file in the repository.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from enum import Enum
from types import ModuleType
from typing import Any

import click

import tvm_hybrid
from tvm_hybrid.cli.group import cli

from .public_face import Docstring, public_commands, public_errors, public_objects

FOLDER = "reference"
INDEX, ERRORS, COMMANDS = (f"{FOLDER}/{name}.md" for name in ("index", "errors", "commands"))
LONGEST_SIGNATURE = 88  # a longer one has a line for each parameter

# Page -> its title, what readers find there, and the public names.
TOPICS = {
    "compile": (
        "Compile and load",
        "Make an `Executable` from a model or from an exported library.",
        ["compile", "CompileOptions", "load", "import_onnx", "resolve_target", "Stage"],
    ),
    "executable": (
        "Compiled models",
        "Run, explain, profile and export a compiled model.",
        ["Executable"],
    ),
    "session": (
        "Sessions",
        "Run an ONNX model like ONNX Runtime.",
        [
            *("InferenceSession", "SessionOptions", "RunOptions", "NodeArg", "ModelMetadata"),
            *("ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel"),
        ],
    ),
    "values": (
        "Bound inputs and outputs",
        "Give a session memory for its inputs and outputs.",
        ["IOBinding", "OrtValue", "OrtDevice"],
    ),
    "tuning": (
        "Tune and quantize",
        "Search kernel configurations; make an int8 model from a float32 model.",
        ["tune", "quantize"],
    ),
    "tvm": (
        "Inside TVM and PyTorch",
        "Use the kernels in a TVM program, or compile a program of PyTorch.",
        ["partition_for_tvm_hybrid", "tensorize", "dlight", "metaschedule", "torch_programs"],
    ),
    "functions": (
        "Functions of ONNX Runtime",
        "Replace functions of the module `onnxruntime` in programs that call them.",
        [
            *("get_available_providers", "get_all_providers", "get_device", "get_build_info"),
            *("get_version_string", "set_default_logger_severity", "set_default_logger_verbosity"),
            *("set_seed", "preload_dlls", "enable_telemetry_events", "disable_telemetry_events"),
        ],
    ),
}
MEMBERS = 4  # a class with more members has a table of them


def pages() -> dict[str, str]:
    """The reference: path in the site's sources -> Markdown."""
    objects = public_objects()
    modules = {name: getattr(tvm_hybrid, name) for name in tvm_hybrid.__all__}
    objects |= {name: each for name, each in modules.items() if inspect.ismodule(each)}
    found = {INDEX: _index(objects)}
    for page, (title, purpose, names) in TOPICS.items():
        parts = [f"# {title}\n\n{purpose}\n"]
        if len(names) > 1:
            parts.append(_summary((name, objects[name]) for name in names))
        for name in names:
            parts += _with_members(name, objects)
        found[f"{FOLDER}/{page}.md"] = "\n".join(parts)
    return found | {ERRORS: _errors(), COMMANDS: _commands()}


def anchor(name: str) -> str:
    """The anchor that mkdocs gives to the heading of a name."""
    return name.lower().replace(".", "").replace(" ", "-")


def first_sentence(text: str) -> str:
    """The first line of a docstring, as a table's cell."""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def _index(objects: dict[str, Any]) -> str:
    parts = [
        "# Python API\n",
        "All public names of `tvm_hybrid`. [From Python](../python.md) explains how they work "
        f"together. [Errors]({ERRORS.rpartition('/')[2]}) lists the exceptions, "
        f"[Commands]({COMMANDS.rpartition('/')[2]}) the command line.\n",
    ]
    for page, (title, purpose, names) in TOPICS.items():
        parts.append(f"## [{title}]({page}.md)\n\n{purpose}\n")
        parts.append(_summary(((name, objects[name]) for name in names), f"{page}.md"))
    return "\n".join(parts)


def _summary(objects: Iterable[tuple[str, Any]], page: str = "") -> str:
    rows = [
        f"| [`{name.rpartition('.')[2]}`]({page}#{anchor(name)}) "
        f"| {first_sentence(Docstring.of(value).text)} |"
        for name, value in objects
    ]
    return "\n".join(["| name | what it is or does |", "|---|---|", *rows, ""])


def _with_members(name: str, objects: dict[str, Any]) -> list[str]:
    """The sections of a name and of its members, if it is a class."""
    inside = {key: value for key, value in objects.items() if key.startswith(f"{name}.")}
    members = _summary(inside.items()) if len(inside) > MEMBERS else ""
    parts = [_object(name, objects[name], members)]
    return parts + [_object(key, value) for key, value in inside.items()]


def _object(name: str, value: Any, members: str = "") -> str:
    """A section; `members` is a table of a class's members, which precedes the constructor."""
    documented = Docstring.of(value)
    level = "###" if "." in name else "##"
    call = "" if isinstance(value, ModuleType) else f"```python\n{signature(name, value)}\n```"
    order = [documented.text, members, call] if members else [call, documented.text]
    parts = [f"{level} {name}", *(part.strip() for part in order if part)]
    for title in documented.sections:
        parts.append(f"**{title}**")
        if title in ("Notes", "Examples"):
            parts.append(documented.sections[title])
        else:
            parts.append("\n".join(_entry(*entry) for entry in documented.entries(title)))
    return "\n\n".join(parts) + "\n"


def signature(name: str, value: Any) -> str:
    """How a function or class is called; a long call has a line for each parameter."""
    if isinstance(value, property):
        return f"{name}  # property"
    if inspect.isclass(value) and issubclass(value, Enum):
        return f"{name}  # {', '.join(f'{each.name} = {each.value}' for each in value)}"
    found = inspect.signature(value)
    plain = [
        parameter.replace(annotation=parameter.empty)
        for parameter in found.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    short = f"{name}{found.replace(parameters=plain, return_annotation=found.empty)}"
    if len(short) <= LONGEST_SIGNATURE:
        return short
    lines, keyword_only = [f"{name}("], any(each.kind is each.VAR_POSITIONAL for each in plain)
    for each in plain:
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            lines.append("    *,")
            keyword_only = True
        lines.append(f"    {each},")
    return "\n".join([*lines, ")"])


def _entry(head: str, text: str) -> str:
    name, colon, kind = head.partition(" : ")
    title = f"`{name}`" + (f" ({kind})" if colon else "")
    return f"- {title}" + (f": {' '.join(text.split())}" if text else "")


def _errors() -> str:
    lines = [
        "# Errors",
        "",
        "All errors are in `tvm_hybrid.errors`. A message says what was wrong, where, and what to "
        "do. [A wrong or slow model](../debugging.md#it-does-not-compile) has usual causes.",
        "",
        "| error | is a | raised when |",
        "|---|---|---|",
    ]
    for name, error in public_errors().items():
        bases = ", ".join(base.__name__ for base in error.__bases__)
        lines.append(f"| `{name}` | {bases} | {Docstring.of(error).text} |")
    return "\n".join(lines) + "\n"


def _commands() -> str:
    commands = public_commands()
    parts = [
        "# Commands\n",
        "The help of every command. [From the command line](../command_line.md) has examples.\n",
        "| command | what it does |\n|---|---|",
    ]
    for name, command in commands.items():
        text = first_sentence(command.help or "")
        parts.append(f"| [`{name}`](#{anchor(name)}) | {text} |")
    parts.append("")
    return "\n".join([*parts, *(_command(*item) for item in commands.items())])


def _command(name: str, command: click.Command) -> str:
    context = click.Context(
        command,
        info_name=name,
        max_content_width=100,
        terminal_width=100,
        # The real settings, because click keeps the first help option that a command gets.
        **cli.context_settings,
    )
    return f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"

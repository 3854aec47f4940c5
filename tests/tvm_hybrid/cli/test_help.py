"""Help, examples and completion of the command line, and how few modules they import."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.tvm_hybrid.small_models import ROOT, run_python
from tools.public_face import public_commands
from tvm_hybrid.cli import main
from tvm_hybrid.cli.group import COMMANDS, EXAMPLES, cli

HEAVY = ("tvm", "numpy", "onnx", "msgspec", "ml_dtypes", "xgboost", "onnxruntime")
NAMES = [name.removeprefix("tvm-hybrid ") for name in public_commands() if name != "tvm-hybrid"]


@pytest.mark.parametrize("name", NAMES)
def test_help_ends_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    _, title, examples = capsys.readouterr().out.partition("\n  Examples:\n")
    assert title
    assert [line.strip() for line in examples.splitlines()] == list(EXAMPLES[name])


@pytest.mark.parametrize("line", [line for name in NAMES for line in EXAMPLES[name]])
def test_examples_are_what_the_command_takes(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.jsonl").touch()
    (tmp_path / "database").mkdir()
    program, *words = shlex.split(line.partition(" > ")[0])
    assert program == "tvm-hybrid"
    command: click.Command = cli
    context = click.Context(cli, info_name=program)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    assert command.make_context(str(command.name), words, parent=context).params


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["tune", "--help"]])
def test_help_and_version_import_no_compiler(arguments: list[str]) -> None:
    code = (
        "import sys; from tvm_hybrid_command import main;"
        "sys.argv[0] = 'tvm-hybrid'; code = main();"
        f"sys.exit(code or [name for name in {HEAVY!r} if name in sys.modules] or 0)"
    )
    done = run_python(code, *arguments)
    assert done.returncode == 0, done.stderr


def completed(words: str) -> set[str]:
    """The shell's suggestions for the last word."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_TVM_HYBRID_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = "import sys; sys.argv[0] = 'tvm-hybrid'; from tvm_hybrid_command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_a_shell_completes_commands_options_targets_and_files() -> None:
    assert {"plain,quantize"} <= completed("tvm-hybrid qu")
    assert {"plain,--data", "plain,--dynamic"} <= completed("tvm-hybrid quantize --d")
    assert {"plain,spr", "plain,sapphirerapids"} <= completed("tvm-hybrid run --target s")
    assert completed("tvm-hybrid run mod") == {"file,mod"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_TVM_HYBRID_COMPLETE={shell}_complete" in script and "tvm-hybrid" in script


def test_a_misspelt_command_gets_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert "compile" in COMMANDS
    assert main(["compil"]) == 2
    assert "did you mean compile?" in capsys.readouterr().err

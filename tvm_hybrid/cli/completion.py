"""`tvm-hybrid completion bash|zsh|fish`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

VARIABLE = "_TVM_HYBRID_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Prints the script that lets SHELL complete commands, options, targets and files.

    Write it where your shell looks for completions, as the examples do; a new shell then knows it.
    """
    from click.shell_completion import get_completion_class

    root = context.find_root()
    found = get_completion_class(shell)
    assert found is not None  # click has all three
    source = found(root.command, {}, "tvm-hybrid", VARIABLE).source()
    click.echo(source.strip("\n"))

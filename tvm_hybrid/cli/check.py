"""`tvm-hybrid check LIBRARY`: looks for damage in all of an exported library."""

from __future__ import annotations

from pathlib import Path

import click

from .base.console import print_json, say
from .base.options import FILE, json_option


@click.command("check")
@click.argument("library", type=FILE)
@json_option
def command(library: Path, as_json: bool) -> int:
    """Looks for damage in LIBRARY, which `compile` wrote; exit code 1 if there is any.

    Loading checks all but the weights; this reads these, too. Nothing of the library is executed.
    """
    from microkernels.base.errors import ArtifactError, VerifyError

    from ..library.artifact import read_manifest

    if not library.exists():
        raise ArtifactError(f"there is no library {library}; check the path")
    try:
        manifest = read_manifest(library, verify=True)
    except ArtifactError as error:
        raise VerifyError(str(error)) from error
    size = library.stat().st_size
    weights = sum(each.size for each in manifest.weights)
    if as_json:
        print_json({"bytes": size, "weights": len(manifest.weights), "weight_bytes": weights})
        return 0
    say(f"{library} is whole: {size} bytes, {weights} of them {len(manifest.weights)} weights")
    return 0

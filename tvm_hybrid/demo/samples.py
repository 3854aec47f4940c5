"""The files of this repository that the demonstration recognises, and what they are."""

from __future__ import annotations

from pathlib import Path

from microkernels.base.errors import TvmHybridError

REPOSITORY = Path(__file__).resolve().parents[2]

# Path in the repository -> magika's label.
SAMPLES = {
    "tvm_hybrid/demo/file_types.py": "python",
    "relay_passes/pipeline.py": "python",
    "README.md": "markdown",
    "CONTRIBUTING.md": "markdown",
    "LICENSE": "txt",
    "Makefile": "makefile",
    "setup.cfg": "ini",
    "ruff.toml": "toml",
    "pyproject.toml": "toml",
    "notebooks/quickstart.ipynb": "ipynb",
    ".ci/run": "shell",
    ".gitignore": "ignorefile",
}


class SampleError(TvmHybridError, RuntimeError):
    """The demonstration's files are not there."""


def sample_paths() -> dict[Path, str]:
    """The samples that are in this checkout, with their labels.

    Raises
    ------
    SampleError
        If one is missing, as in an installation without the repository.
    """
    samples = {REPOSITORY / name: label for name, label in SAMPLES.items()}
    missing = [path.name for path in samples if not path.is_file()]
    if missing:
        raise SampleError(
            f"{', '.join(missing)} not found in {REPOSITORY}; run the demonstration in a clone of "
            "the repository"
        )
    return samples

"""The demonstration's first part: magika recognises files of this repository."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table
from rich.text import Text

from microkernels.base.errors import ModelError, TvmHybridError, VerifyError

from ..bench.bench import BenchReport
from .models import DemoModel, Member, Steps, fetch

STEPS = 4


def demonstrate_file_types(threads: int, seconds: float, steps: Steps) -> list[BenchReport]:
    """Fetches, compiles and verifies magika, recognises files with it, and measures it.

    Raises
    ------
    VerifyError
        If a result or a label is wrong.
    TvmHybridError
        If something is missing.
    """
    steps.begin("fetching magika, a pretrained file-type classifier")
    model, description, types = fetch(PACKAGE, MEMBERS)
    config = ClassifierConfig.load(description)
    steps.begin("compiling it")
    shape = (1, config.beg_size + config.end_size)
    magika = DemoModel.compile(model, {"bytes": shape}, threads)
    classifier = Classifier(magika.session, config, load_text_labels(types))
    steps.begin("recognising files of this repository")
    steps.show(recognise(classifier))
    source = Path(__file__).read_bytes()
    features = classifier.features(source)
    assert features is not None, "a module's source is longer than a few bytes"
    return [magika.examine({"bytes": features}, seconds, steps)]


def recognise(classifier: Classifier) -> Table:
    """Makes the table of recognised files.

    Raises
    ------
    VerifyError
        If a label is wrong.
    """
    table = Table(title="what magika says", title_justify="left")
    for column in ("file", "label", "score"):
        table.add_column(column)
    wrong = []
    for path, label in sample_paths().items():
        name = str(path.relative_to(REPOSITORY))
        verdict = classifier.classify(path.read_bytes())
        right = verdict.label == label
        found = Text(verdict.label, "green" if right else "bold red")
        table.add_row(Text(name), found, f"{verdict.score:.4f}")
        if not right:
            wrong.append(f"{name} is {label}, not {verdict.label}")
    if wrong:
        raise VerifyError("; ".join(wrong))
    return table


# Pre- and postprocessing of magika's network: features from a file, a label from the scores.
#
# The features are those of magika's version 3 models: of the first and the last `block_size` bytes,
# stripped of white space on the outer side, the first `beg_size` and the last `end_size`, padded.
# The reported label follows magika's high-confidence mode.


class ClassifierConfig(msgspec.Struct, frozen=True):
    """The part of the model's config.min.json that we use; names are magika's."""

    beg_size: int
    mid_size: int
    end_size: int
    use_inputs_at_offsets: bool
    medium_confidence_threshold: float
    min_file_size_for_dl: int
    padding_token: int
    block_size: int
    target_labels_space: tuple[str, ...]
    thresholds: dict[str, float]
    overwrite_map: dict[str, str]

    @staticmethod
    def load(path: Path) -> ClassifierConfig:
        """Reads the file.

        Raises
        ------
        ModelError
            If it is not a description of such a model.
        """
        try:
            config = msgspec.json.decode(path.read_bytes(), type=ClassifierConfig)
        except (OSError, msgspec.DecodeError) as error:
            raise ModelError(f"{path} does not describe the classifier: {error}") from error
        if config.mid_size or config.use_inputs_at_offsets:
            raise ModelError(f"{path}: features from the middle of a file are not known here")
        return config


def load_text_labels(path: Path) -> frozenset[str]:
    """Reads the labels of text types from magika's content_types_kb.min.json.

    Raises
    ------
    ModelError
        If the file does not describe labels.
    """
    try:
        types = msgspec.json.decode(path.read_bytes(), type=dict[str, _ContentType])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path} does not describe content types: {error}") from error
    return frozenset(name for name, description in types.items() if description.is_text)


class _ContentType(msgspec.Struct, frozen=True):
    is_text: bool


class Verdict(msgspec.Struct, frozen=True):
    """The type of a file.

    Attributes
    ----------
    label : str
        The label that magika would report.
    score : float
        The network's confidence in its first choice; 1 if the network was not used.
    first_choice : str
        The network's own label; "" if it was not used.
    """

    label: str
    score: float
    first_choice: str = ""


class Classifier:
    """Recognises file types.

    Parameters
    ----------
    session : InferenceSession
        The network, or anything with `run(None, {"bytes": features}) -> [scores]`.
    config : ClassifierConfig
        Its description.
    labels : collection of str
        Labels of text types.
    """

    def __init__(self, session: Any, config: ClassifierConfig, labels: Collection[str]) -> None:
        self._session, self._config, self._text_labels = session, config, labels

    def features(self, content: bytes) -> np.ndarray | None:
        """Computes the network's input for a file's content.

        Returns
        -------
        numpy.ndarray or None
            int32, shape (1, beg_size + end_size); None if the file is too small for the network.
        """
        config = self._config
        begin = content[: config.block_size].lstrip()[: config.beg_size]
        if len(content) < config.min_file_size_for_dl or len(begin) < config.min_file_size_for_dl:
            return None
        end = content[-config.block_size :].rstrip()[-config.end_size :]
        row = np.full((1, config.beg_size + config.end_size), config.padding_token, np.int32)
        row[0, : len(begin)] = np.frombuffer(begin, np.uint8)
        if end:
            row[0, -len(end) :] = np.frombuffer(end, np.uint8)
        return row

    def classify(self, content: bytes) -> Verdict:
        """Recognises the type of a file with this content."""
        if not content:
            return Verdict("empty", 1.0)
        features = self.features(content)
        if features is None:
            try:
                content[: self._config.block_size].decode("utf-8")
            except UnicodeDecodeError:
                return Verdict("unknown", 1.0)
            return Verdict("txt", 1.0)
        scores = self._session.run(None, {"bytes": features})[0]
        return self.verdict(scores[0])

    def verdict(self, scores: Sequence[float] | np.ndarray) -> Verdict:
        """Chooses the label for the network's scores; a generic one if the score is too low."""
        config = self._config
        place = int(np.argmax(scores))
        score, choice = float(scores[place]), config.target_labels_space[place]
        label = config.overwrite_map.get(choice, choice)
        if score < config.thresholds.get(choice, config.medium_confidence_threshold):
            label = "txt" if label in self._text_labels else "unknown"
        return Verdict(label, score, choice)


PACKAGE = "magika==1.0.3"
MEMBERS = {
    "magika.onnx": Member(
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    "config.min.json": Member(
        "magika/models/standard_v3_3/config.min.json",
        "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    ),
    "content_types_kb.min.json": Member(
        "magika/config/content_types_kb.min.json",
        "75208adba69bc0556403b62b32ef3ccf8b5ce494411780845852e52e6583a10d",
    ),
}


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
    """Files for the demonstration are missing."""


def sample_paths() -> dict[Path, str]:
    """Returns the sample files of this checkout, with their labels.

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

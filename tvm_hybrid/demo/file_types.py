"""The demonstration's first part: magika recognises files of this repository."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from microkernels.base.errors import VerifyError

from ..bench.bench import BenchReport
from .classifier import Classifier, ClassifierConfig, load_text_labels
from .magika_files import fetch_magika
from .models import DemoModel
from .samples import REPOSITORY, sample_paths
from .steps import Steps

STEPS = 4


def demonstrate_file_types(threads: int, seconds: float, steps: Steps) -> list[BenchReport]:
    """Fetches, compiles and verifies magika, recognises files with it, measures it.

    Raises
    ------
    VerifyError
        If a result or a label is wrong.
    TvmHybridError
        If something is missing.
    """
    steps.begin("fetching magika, a pretrained file-type classifier")
    files = fetch_magika()
    config = ClassifierConfig.load(files.config)
    steps.begin("compiling it")
    shape = (1, config.beg_size + config.end_size)
    magika = DemoModel.compile(files.model, {"bytes": shape}, threads)
    classifier = Classifier(magika.session, config, load_text_labels(files.types))
    steps.begin("recognising files of this repository")
    steps.show(recognise(classifier))
    source = (REPOSITORY / "tvm_hybrid" / "demo" / "classifier.py").read_bytes()
    features = classifier.features(source)
    assert features is not None, "a module's source is longer than a few bytes"
    return [magika.examine({"bytes": features}, seconds, steps)]


def recognise(classifier: Classifier) -> Table:
    """The table of recognised files.

    Raises
    ------
    VerifyError
        If a label is not what the file is.
    """
    table = Table(title="what magika says", title_justify="left")
    for column in ("file", "label", "score"):
        table.add_column(column)
    wrong = []
    for path, label in sample_paths().items():
        name = str(path.relative_to(REPOSITORY))
        verdict = classifier.classify(path.read_bytes())
        right = verdict.label == label
        table.add_row(
            Text(name),
            Text(verdict.label, "green" if right else "bold red"),
            f"{verdict.score:.4f}",
        )
        if not right:
            wrong.append(f"{name} is {label}, not {verdict.label}")
    if wrong:
        raise VerifyError("; ".join(wrong))
    return table

"""Features: named columns of numbers, one row for each configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Features:
    """A matrix with names.

    Attributes
    ----------
    names : tuple of str
        Of the columns.
    values : numpy.ndarray
        [configurations, columns], float32.
    """

    names: tuple[str, ...]
    values: np.ndarray

    def varying(self) -> Features:
        """Without the columns in which all rows are alike."""
        if not len(self.values):
            return self
        keep = np.flatnonzero((self.values != self.values[0]).any(axis=0))
        return Features(tuple(self.names[i] for i in keep), self.values[:, keep])


def side_by_side(parts: Sequence[Features]) -> Features:
    """The columns of several, for the same configurations."""
    names = tuple(name for part in parts for name in part.names)
    return Features(names, np.concatenate([part.values for part in parts], axis=1))


def signed_log2(values: np.ndarray) -> np.ndarray:
    """sign(x) log2(|x| + 1), as the paper scales what spans orders of magnitude.

    >>> signed_log2(np.array([0.0, 1.0, -3.0])).tolist()
    [0.0, 1.0, -2.0]
    """
    return np.sign(values) * np.log2(np.abs(values) + 1)

"""What a test compiled."""

from dataclasses import dataclass


@dataclass
class Builds:
    """Counts what is compiled by our pipeline.

    Attributes
    ----------
    modules : int
        Modules that went through all of our pipeline.
    regions : int
        Nodes of these that templates of ours build.
    """

    modules: int = 0
    regions: int = 0

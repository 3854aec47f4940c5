"""Outline: what a library keeps of its program's graph and memory, for `report`; compressed."""

from __future__ import annotations

import zlib

import msgspec

from microkernels.base.errors import ArtifactError

from .program_graph import ProgramGraph
from .storage_plan import Plan


class Outline(msgspec.Struct, frozen=True):
    """What a report says of a program besides its decisions and times.

    Attributes
    ----------
    graph : ProgramGraph
        Its kernels and their tensors.
    plan : Plan
        Its storage.
    weights : int
        Bytes of its constants, as kernels read them.
    """

    graph: ProgramGraph
    plan: Plan
    weights: int

    def packed(self) -> bytes:
        """In few bytes."""
        return zlib.compress(msgspec.msgpack.encode(self))

    @staticmethod
    def unpacked(data: bytes) -> Outline:
        """What `packed` made.

        Raises
        ------
        ArtifactError
            If it is something else.
        """
        try:
            return msgspec.msgpack.decode(zlib.decompress(data), type=Outline)
        except (zlib.error, msgspec.DecodeError) as error:
            raise ArtifactError(
                f"what the library keeps of its graph is damaged ({error}); export it again"
            ) from error

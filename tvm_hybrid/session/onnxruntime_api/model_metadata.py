"""ModelMetadata: what a model says of itself."""

from __future__ import annotations

from collections.abc import Mapping


class ModelMetadata:
    """What a model says of itself, under the names of ONNX Runtime.

    Parameters
    ----------
    producer_name, graph_name, domain, description, graph_description : str
        As in the model; all empty for a library, and for a model that is not ONNX.
    version : int
        As in the model.
    custom_metadata_map : mapping from str to str
        What else it says.

    Attributes
    ----------
    producer_name, graph_name, domain, description, graph_description : str
    version : int
    custom_metadata_map : dict of str to str
    """

    def __init__(
        self,
        producer_name: str = "",
        graph_name: str = "",
        domain: str = "",
        description: str = "",
        graph_description: str = "",
        version: int = 0,
        custom_metadata_map: Mapping[str, str] | None = None,
    ) -> None:
        self.producer_name = producer_name
        self.graph_name = graph_name
        self.domain = domain
        self.description = description
        self.graph_description = graph_description
        self.version = version
        self.custom_metadata_map = dict(custom_metadata_map or {})

    def __repr__(self) -> str:
        return f"ModelMetadata({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

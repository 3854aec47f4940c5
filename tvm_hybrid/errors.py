"""Every error that tvm_hybrid raises on purpose."""

from microkernels.errors import (
    ArtifactError,
    CompileError,
    ConfigError,
    FeedError,
    InputValueError,
    IsaError,
    ModelError,
    OutputError,
    RecordError,
    ServerError,
    ShapeError,
    TargetError,
    TvmHybridError,
    UnsupportedOperatorError,
    UnsupportedTvmError,
    VerifyError,
)

__all__ = [
    "ArtifactError",
    "CompileError",
    "ConfigError",
    "FeedError",
    "InputValueError",
    "IsaError",
    "ModelError",
    "OutputError",
    "RecordError",
    "ServerError",
    "ShapeError",
    "TargetError",
    "TvmHybridError",
    "UnsupportedOperatorError",
    "UnsupportedTvmError",
    "VerifyError",
]

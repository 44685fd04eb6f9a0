"""The file source and the file sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.system.jvm_only import refusing
from holdfast.connectors.file.buckets import BucketAssigner
from holdfast.connectors.file.encoders import JsonLinesEncoder
from holdfast.connectors.file.sink import FileSink
from holdfast.connectors.file.sink_settings import (
    ConcatFileCompactor,
    DefaultRollingPolicy,
    FileCompactor,
    FileCompactStrategy,
    IdenticalFileCompactor,
    OnCheckpointRollingPolicy,
    OutputFileConfig,
    RecordWiseFileCompactor,
    RollingPolicy,
)
from holdfast.connectors.file.source import FileSource, FileSourceBuilder
from holdfast.connectors.file.stream_format import StreamFormat

__all__ = [
    "BucketAssigner",
    "ConcatFileCompactor",
    "DefaultRollingPolicy",
    "FileCompactStrategy",
    "FileCompactor",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "IdenticalFileCompactor",
    "JsonLinesEncoder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
    "RecordWiseFileCompactor",
    "RollingPolicy",
    "StreamFormat",
]


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "FileEnumeratorProvider": "it provides an object of the JVM; FileSource finds the files itself",
            "FileSplitAssignerProvider": "it provides an object of the JVM; FileSource assigns the splits itself",
            "BulkFormat": "it is a reader of the JVM; use StreamFormat.parquet(), arrow() or avro()",
            "StreamingFileSink": "it is Flink's older sink; use FileSink.for_row_format()",
        },
    )

"""The file source and the file sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.system.jvm_only import refusing
from holdfast.connectors.file.buckets import BucketAssigner
from holdfast.connectors.file.encoders import JsonLinesEncoder
from holdfast.connectors.file.sink import FileSink
from holdfast.connectors.file.sink_settings import OnCheckpointRollingPolicy, OutputFileConfig, RollingPolicy
from holdfast.connectors.file.source import FileSource, FileSourceBuilder
from holdfast.connectors.file.stream_format import StreamFormat

__all__ = [
    "BucketAssigner",
    "FileSink",
    "FileSource",
    "FileSourceBuilder",
    "JsonLinesEncoder",
    "OnCheckpointRollingPolicy",
    "OutputFileConfig",
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
            "DefaultRollingPolicy": "files are rolled with each epoch; use RollingPolicy.default_rolling_policy()",
            "FileCompactStrategy": "files are not compacted; longer epochs write larger ones",
            "FileCompactor": "files are not compacted; longer epochs write larger ones",
            "StreamingFileSink": "it is Flink's older sink; use FileSink.for_row_format()",
        },
    )

"""SparkTableSink: each checkpoint's output in a table or directory that Spark writes, exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import xxhash

from holdfast.checkpoint.paths import new_attempt
from holdfast.common.values.tabular import KIND_COLUMN
from holdfast.errors import ConfigurationError
from holdfast.runtime.jvm.pyspark_internals import gateway, java_session, jvm
from holdfast.spark.frame_sink import FrameSink
from holdfast.spark.frames import NUMBER_COLUMN, spark_frame
from holdfast.spark.staged_output import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkTableSink", "latest", "merge_statement"]

_FILES = ("parquet", "orc", "json", "csv", "avro", "text", "xml")
_RENAMING = ("", "file", "hdfs", "viewfs", "abfs", "abfss")
"""Schemes of file systems that rename a directory in one step; empty: Spark's own file system, judged when it is known."""
_CHECKPOINT = "checkpoint"
"""The column of a directory's partitions."""


class SparkTableSink(FrameSink):
    """A sink that lets Spark write the output of each checkpoint.

    Args:
        target: A table's name, or the path of a directory (with a ``/``).
        format: Spark's name of the format: ``delta``, ``parquet``, ``iceberg`` ...
        mode: ``append`` adds the rows, to tables of ``delta`` and to directories of Spark's file formats. ``merge`` replaces
            rows with equal keys, and deletes those of a changelog's ``DELETE``, in tables that know ``MERGE INTO``.
        merge_keys: The columns by which rows are merged.
        partition_by: The columns by which Spark partitions what it appends.
        options: Further options of Spark's writer.

    Raises:
        ConfigurationError: the arguments do not fit each other, or could not be exactly once.
    """

    def __init__(
        self,
        target: str,
        format: str,
        mode: str = "append",
        merge_keys: Sequence[str] = (),
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        _check(target, format, mode, merge_keys)
        write = _Write(target, format.lower(), tuple(merge_keys), tuple(partition_by), dict(options or {}))
        super().__init__("SparkTableSink", write)


def _check(target: object, format: object, mode: object, merge_keys: object) -> None:
    if not isinstance(target, str) or not target:
        raise ConfigurationError(f"SparkTableSink: {target!r} is neither a table's name nor the path of a directory")
    if not isinstance(format, str) or not format:
        raise ConfigurationError(f"SparkTableSink: name a format as Spark does, such as 'delta', not {format!r}")
    if isinstance(merge_keys, str) or not isinstance(merge_keys, Sequence):
        raise ConfigurationError(f"SparkTableSink: merge_keys is a list of columns, not {merge_keys!r}")
    kind, is_path = format.lower(), _is_path(target)
    if mode == "merge":
        if not merge_keys:
            raise ConfigurationError("SparkTableSink: mode 'merge' needs merge_keys, the columns by which rows are merged")
        if kind in _FILES:
            raise ConfigurationError(
                f"SparkTableSink: rows in files of {kind} cannot be merged; take a table of delta or iceberg"
            )
        return
    if mode != "append":
        raise ConfigurationError(f"SparkTableSink: the mode is 'append' or 'merge', not {mode!r}")
    if merge_keys:
        raise ConfigurationError("SparkTableSink: merge_keys are those of mode 'merge'")
    if kind in _FILES:
        if not is_path:
            raise ConfigurationError(
                f"SparkTableSink: to append to a table of {kind} cannot be exactly once; give the path of a directory, and "
                "make a table of it (CREATE TABLE ... USING ... LOCATION)"
            )
        _check_scheme(urlsplit(target).scheme)
    elif kind != "delta":
        raise ConfigurationError(
            f"SparkTableSink: to append to {kind} cannot be exactly once, as it does not remember what it has; use "
            "mode='merge', or foreach_checkpoint() with a function that finds out"
        )


def _check_scheme(scheme: str) -> None:
    if scheme not in _RENAMING:
        raise ConfigurationError(
            f"SparkTableSink: a directory in {scheme}:// cannot be renamed in one step, so files appended there are not "
            "exactly once; take a FileSink, or a table of delta"
        )


def _is_path(target: str) -> bool:
    return "/" in target


class _Write:
    """Writes the output of a checkpoint; called again with the same output, it changes nothing."""

    def __init__(
        self, target: str, format: str, keys: tuple[str, ...], partition_by: tuple[str, ...], options: dict[str, str]
    ) -> None:
        self._target = target
        self._format = format
        self._keys = keys
        self._partition_by = partition_by
        self._options = options

    def __call__(self, session: SparkSession, output: StagedOutput) -> None:
        if self._keys:
            self._merge(session, output)
            return
        frame = spark_frame(session, output)
        if KIND_COLUMN in frame.columns:
            raise ValueError("rows of a changelog cannot be appended; merge them by keys, or filter the stream")
        if self._format == "delta":
            self._append(frame, output)
        else:
            self._add_directory(session, frame, output)

    def _writer(self, frame: DataFrame) -> Any:
        writer = frame.write.format(self._format).options(**self._options)
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def _append(self, frame: DataFrame, output: StagedOutput) -> None:
        """Append to a table that remembers the last version of each application."""
        application = output.area.prefix.rstrip("/")
        transaction = {"txnAppId": application, "txnVersion": str(output.checkpoint_id)}
        writer = self._writer(frame).options(**transaction).mode("append")
        if _is_path(self._target):
            writer.save(self._target)
        else:
            writer.saveAsTable(self._target)

    def _add_directory(self, session: SparkSession, frame: DataFrame, output: StagedOutput) -> None:
        """Write a directory that nobody reads, and give it its final name in one step."""
        if _CHECKPOINT in frame.columns:
            raise ValueError(f"the column {_CHECKPOINT} is that of the sink's directories; rename yours")
        fs = jvm(session.sparkContext).org.apache.hadoop.fs
        hadoop = java_session(session).sessionState().newHadoopConf()
        root = fs.Path(self._target)
        files = root.getFileSystem(hadoop)
        _check_scheme(files.getUri().getScheme())
        owner = xxhash.xxh3_64_hexdigest(output.area.prefix.encode())
        final = fs.Path(root, f"{_CHECKPOINT}={owner}-{output.checkpoint_id}")
        if files.exists(final):
            return
        hidden = fs.Path(root, f"_holdfast/{owner}")
        files.delete(hidden, True)  # what drivers before have left
        staged = fs.Path(hidden, f"{output.checkpoint_id}-{new_attempt()}")
        self._writer(frame).mode("errorifexists").save(staged.toString())
        no_options = gateway(session.sparkContext).new_array(getattr(fs, "Options$Rename"), 0)
        fs.FileContext.getFileContext(files.getUri(), hadoop).rename(
            files.makeQualified(staged), files.makeQualified(final), no_options
        )
        files.delete(hidden, True)

    def _merge(self, session: SparkSession, output: StagedOutput) -> None:
        frame = latest(spark_frame(session, output, numbered=True), self._keys)
        view = f"holdfast_{new_attempt()}"
        frame.createTempView(view)
        try:
            session.sql(merge_statement(self._qualified(), view, frame.columns, self._keys))
        finally:
            session.catalog.dropTempView(view)

    def _qualified(self) -> str:
        return f"{self._format}.{_quoted(self._target)}" if _is_path(self._target) else self._target


def latest(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The last row of each key."""
    from pyspark.sql import functions as F

    if KIND_COLUMN in frame.columns:
        frame = frame.where(F.coalesce(KIND_COLUMN, F.lit("INSERT")) != "UPDATE_BEFORE")
    names = [name for name in frame.columns if name != NUMBER_COLUMN]
    if missing := [key for key in keys if key not in names]:
        raise ValueError(f"the rows have no column {missing[0]}, a merge key; they have {', '.join(names)}")
    row = F.max_by(F.struct(*map(_quoted, names)), NUMBER_COLUMN).alias("row")
    latest = frame.groupBy(*map(_quoted, keys)).agg(row)
    return latest.select(*(F.col("row").getField(name).alias(name) for name in names))


def merge_statement(target: str, source: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """The statement that merges a source into a table.

    >>> print(merge_statement("totals", "latest", ["shop", "total", "row_kind"], ["shop"]))
    MERGE INTO totals AS t USING latest AS s ON t.`shop` <=> s.`shop`
    WHEN MATCHED AND s.`row_kind` <=> 'DELETE' THEN DELETE
    WHEN MATCHED THEN UPDATE SET `shop` = s.`shop`, `total` = s.`total`
    WHEN NOT MATCHED AND NOT s.`row_kind` <=> 'DELETE' THEN INSERT (`shop`, `total`) VALUES (s.`shop`, s.`total`)

    Args:
        target: The table.
        source: A view with the last row of each key.
        columns: Its columns; with their kind if they are of a changelog.
        keys: Those that identify a row.
    """
    deletes = f"s.{_quoted(KIND_COLUMN)} <=> 'DELETE'"
    changes = KIND_COLUMN in columns
    names = [_quoted(name) for name in columns if name != KIND_COLUMN]
    found = " AND ".join(f"t.{name} <=> s.{name}" for name in map(_quoted, keys))
    return "\n".join(
        [
            f"MERGE INTO {target} AS t USING {source} AS s ON {found}",
            *([f"WHEN MATCHED AND {deletes} THEN DELETE"] if changes else []),
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)}",
            f"WHEN NOT MATCHED{f' AND NOT {deletes}' if changes else ''} THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)})",
        ]
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"

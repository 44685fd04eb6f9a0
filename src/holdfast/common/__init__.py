"""Basics of every program: types, rows, time, configuration, watermarks, schemas and jobs."""

from __future__ import annotations

from holdfast.common.completable_future import CompletableFuture
from holdfast.common.config_options import ConfigOption, ConfigOptions
from holdfast.common.configuration import Configuration
from holdfast.common.execution_config import ExecutionConfig
from holdfast.common.formats.avro_schema import AvroRowDeserializationSchema, AvroRowSerializationSchema
from holdfast.common.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.common.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.common.job_client import HeldCheckpoint, JobClient
from holdfast.common.job_execution_result import JobExecutionResult
from holdfast.common.job_id import JobID
from holdfast.common.job_status import JobStatus
from holdfast.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
from holdfast.common.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    Encoder,
    RowFieldExtractorSchema,
    SerializationSchema,
    SimpleStringSchema,
)
from holdfast.common.time import Duration, Instant, Time
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row, RowKind
from holdfast.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from holdfast.common.watermark_strategy import TimestampAssigner, WatermarkStrategy

__all__ = [
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "ByteArraySchema",
    "CompletableFuture",
    "ConfigOption",
    "ConfigOptions",
    "Configuration",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "HeldCheckpoint",
    "Instant",
    "JobClient",
    "JobExecutionResult",
    "JobID",
    "JobStatus",
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
    "RestartStrategies",
    "RestartStrategyConfiguration",
    "Row",
    "RowFieldExtractorSchema",
    "RowKind",
    "SerializationSchema",
    "SimpleStringSchema",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "Types",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
]

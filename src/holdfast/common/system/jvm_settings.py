"""Settings of Flink's JVM: accepted and stored in the configuration, without effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.configuration import Configuration

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["JvmSettings"]


class JvmSettings:
    """The settings of an ExecutionConfig for Flink's serializers and scheduler. They have no effect."""

    _configuration: Configuration

    def _flag(self, key: str, value: bool) -> Self:
        self._configuration.set_boolean(key, value)
        return self

    def enable_closure_cleaner(self) -> Self:
        """Kept; functions are pickled with what they refer to."""
        return self._flag(_CLEANER, True)

    def disable_closure_cleaner(self) -> Self:
        """Kept; functions are pickled with what they refer to."""
        return self._flag(_CLEANER, False)

    def is_closure_cleaner_enabled(self) -> bool:
        """Whether the closure cleaner is enabled (the default)."""
        return self._configuration.get_boolean(_CLEANER, True)

    def set_latency_tracking_interval(self, interval: int) -> Self:
        """Stored, in ms, without effect; metrics show the latency of epochs."""
        self._configuration.set_string(_LATENCY, f"{interval} ms")
        return self

    def get_latency_tracking_interval(self) -> int:
        """The interval that was set, in ms; 0 by default."""
        return self._configuration.get_duration_ms(_LATENCY, 0)

    def set_task_cancellation_interval(self, interval: int) -> Self:
        """Kept, in ms; Spark cancels tasks."""
        self._configuration.set_string(_CANCEL_INTERVAL, f"{interval} ms")
        return self

    def get_task_cancellation_interval(self) -> int:
        """The interval that was set, in ms; 30,000 by default."""
        return self._configuration.get_duration_ms(_CANCEL_INTERVAL, 30_000)

    def set_task_cancellation_timeout(self, timeout: int) -> Self:
        """Kept, in ms; Spark cancels tasks."""
        self._configuration.set_string(_CANCEL_TIMEOUT, f"{timeout} ms")
        return self

    def get_task_cancellation_timeout(self) -> int:
        """The timeout that was set, in ms; 180,000 by default."""
        return self._configuration.get_duration_ms(_CANCEL_TIMEOUT, 180_000)

    def enable_force_kryo(self) -> Self:
        """Kept; elements are pickled."""
        return self._flag(_KRYO, True)

    def disable_force_kryo(self) -> Self:
        """Kept; elements are pickled."""
        return self._flag(_KRYO, False)

    def is_force_kryo_enabled(self) -> bool:
        """Whether Kryo is forced."""
        return self._configuration.get_boolean(_KRYO, False)

    def enable_force_avro(self) -> Self:
        """Kept; elements are pickled."""
        return self._flag(_AVRO, True)

    def disable_force_avro(self) -> Self:
        """Kept; elements are pickled."""
        return self._flag(_AVRO, False)

    def is_force_avro_enabled(self) -> bool:
        """Whether Avro is forced."""
        return self._configuration.get_boolean(_AVRO, False)

    def enable_generic_types(self) -> Self:
        """Kept; every type that pickle takes can be used."""
        return self._flag(_GENERIC, True)

    def disable_generic_types(self) -> Self:
        """Kept; every type that pickle takes can be used."""
        return self._flag(_GENERIC, False)

    def has_generic_types_disabled(self) -> bool:
        """Whether `disable_generic_types` was called."""
        return not self._configuration.get_boolean(_GENERIC, True)

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """No classes: there is no Kryo."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """No types: there is no Kryo."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """No types: there are no POJOs."""
        return []


_CLEANER = "pipeline.closure-cleaner.enabled"
_LATENCY = "metrics.latency.interval"
_CANCEL_INTERVAL = "task.cancellation.interval"
_CANCEL_TIMEOUT = "task.cancellation.timeout"
_KRYO = "pipeline.force-kryo"
_AVRO = "pipeline.force-avro"
_GENERIC = "pipeline.generic-types"

"""SlotSharingGroup and MemorySize. They have no effect: Spark places the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

__all__ = ["MemorySize", "SlotSharingGroup"]


@dataclass(frozen=True)
class MemorySize:
    """A size of memory.

    >>> MemorySize.of_mebi_bytes(2).get_bytes()
    2097152
    """

    bytes_size: int

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        """A size in MiB."""
        return MemorySize(mebi_bytes << 20)

    def get_bytes(self) -> int:
        """The size in bytes."""
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        """The size in whole KiB."""
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        """The size in whole MiB."""
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        """The size in whole GiB."""
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        """The size in whole TiB."""
        return self.bytes_size >> 40


@dataclass(frozen=True)
class _Resources:
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external: dict[str, float] = field(default_factory=dict)


class SlotSharingGroup:
    """A group of operators with the resources that they ask for. It has no effect: Spark places the tasks."""

    def __init__(self, name: str, resources: _Resources | None = None) -> None:
        self._name = name
        self._resources = resources or _Resources()

    @staticmethod
    def builder(name: str) -> SlotSharingGroup.Builder:
        """A builder of a group of this name."""
        return SlotSharingGroup.Builder(name)

    def get_name(self) -> str:
        """The name."""
        return self._name

    def get_cpu_cores(self) -> float | None:
        """The cores asked for; None: any."""
        return self._resources.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        """The heap memory asked for; None: any."""
        return self._resources.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        """The off-heap memory asked for; None: any."""
        return self._resources.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        """The managed memory asked for; None: any."""
        return self._resources.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """The external resources asked for, by name."""
        return dict(self._resources.external)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SlotSharingGroup):
            return NotImplemented
        return (self._name, self._resources) == (other._name, other._resources)

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"SlotSharingGroup({self._name!r})"

    class Builder:
        """Builds a SlotSharingGroup."""

        def __init__(self, name: str) -> None:
            self._name = name
            self._resources = _Resources()

        def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroup.Builder:
            """Ask for cores."""
            self._resources = replace(self._resources, cpu_cores=cpu_cores)
            return self

        def set_task_heap_memory(self, task_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Ask for heap memory."""
            self._resources = replace(self._resources, task_heap_memory=task_heap_memory)
            return self

        def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            """Ask for heap memory, in MiB."""
            return self.set_task_heap_memory(MemorySize.of_mebi_bytes(task_heap_memory_mb))

        def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Ask for off-heap memory."""
            self._resources = replace(self._resources, task_off_heap_memory=task_off_heap_memory)
            return self

        def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroup.Builder:
            """Ask for off-heap memory, in MiB."""
            return self.set_task_off_heap_memory(MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

        def set_managed_memory(self, managed_memory: MemorySize) -> SlotSharingGroup.Builder:
            """Ask for managed memory."""
            self._resources = replace(self._resources, managed_memory=managed_memory)
            return self

        def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroup.Builder:
            """Ask for managed memory, in MiB."""
            return self.set_managed_memory(MemorySize.of_mebi_bytes(managed_memory_mb))

        def set_external_resource(self, name: str, value: float) -> SlotSharingGroup.Builder:
            """Ask for an external resource."""
            self._resources = replace(self._resources, external={**self._resources.external, name: value})
            return self

        def build(self) -> SlotSharingGroup:
            """The group."""
            return SlotSharingGroup(self._name, self._resources)

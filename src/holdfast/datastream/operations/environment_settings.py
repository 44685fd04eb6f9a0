"""Settings of an environment for Flink's JVM and cluster: stored without effect, mapped to Holdfast, or refused."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from holdfast.common.config_options import CheckpointingOptions
from holdfast.common.configuration import Configuration
from holdfast.common.system.modes import CheckpointingMode
from holdfast.datastream.checkpoint_config import CheckpointConfig
from holdfast.datastream.operations.operator_settings import check_count
from holdfast.datastream.slot_sharing_group import SlotSharingGroup
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EnvironmentSettings"]

_log = logging.getLogger(__name__)
_CHANGELOG = "state.changelog.enabled"
_MIXED_CHAINING = "pipeline.operator-chaining.chain-operators-with-different-max-parallelism"


class EnvironmentSettings:
    """Settings of a program beside its sources and its run."""

    _configuration: Configuration
    _class_aliases: dict[str, type[Any]]
    _local_parallelism: ClassVar[int | None] = None

    def get_checkpoint_config(self) -> CheckpointConfig:
        """The settings of checkpoints."""
        return CheckpointConfig(self._configuration)

    def add_class_alias(self, former_name: str, present_class: type[Any]) -> None:
        """Let state that was pickled with a class be read with another one: the class has moved or was renamed.

        It is also the way for a dataclass under its old name that has gained a field with a ``default_factory``, and for a
        class of the main module, which pickles contain as a whole. Not needed for state with a declared type.

        Args:
            former_name: The module and name at the time, such as ``shop.models.Order`` or ``__main__.Order``.
            present_class: The class of today.

        Raises:
            ConfigurationError: the name has no module.
            TypeError: the second argument is not a class.
        """
        if "." not in former_name.strip("."):
            raise ConfigurationError(f"{former_name!r} names no class: give its module, too, as in 'shop.models.Order'")
        if not isinstance(present_class, type):
            raise TypeError(f"add_class_alias takes the class itself, got {present_class!r}")
        self._class_aliases[former_name] = present_class

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install packages for the program's functions, with pip, on each host before the job's first task there.

        Sets ``python.requirements``.

        Args:
            requirements_file_path: The requirements file.
            requirements_cache_dir: A directory of packages (``pip download -d``) to install from, for hosts without
                access to pip's index. It is sent to the workers.
        """
        cache = "" if requirements_cache_dir is None else f"#{requirements_cache_dir}"
        self._configuration.set_string("python.requirements", f"{requirements_file_path}{cache}")

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Send a zip or tar archive to the workers, unpacked in their working directory. Adds to ``python.archives``.

        Args:
            archive_path: The archive.
            target_dir: The directory that it is unpacked in; the archive's name by default. Functions open its files by
                relative paths: ``open("target_dir/file")``.

        Raises:
            ConfigurationError: the path has a comma or a #, which separate the entries of ``python.archives``.
        """
        if set(",#") & set(archive_path + (target_dir or "")):
            raise ConfigurationError(
                f"add_python_archive({archive_path!r}): a path must have no comma and no #; rename the file"
            )
        entry = archive_path if target_dir is None else f"{archive_path}#{target_dir}"
        given = self._configuration.get_string("python.archives", "")
        self._configuration.set_string("python.archives", f"{given},{entry}" if given else entry)

    def get_default_local_parallelism(self) -> int:
        """The parallelism of operators in a program that sets none: the number of cores, unless it was set."""
        if EnvironmentSettings._local_parallelism is not None:
            return EnvironmentSettings._local_parallelism
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Set the parallelism of operators for all programs of this process that set none and start their own Spark."""
        EnvironmentSettings._local_parallelism = check_count(parallelism, "default local parallelism")

    def set_default_savepoint_directory(self, directory: str) -> Self:
        """Set the default target directory of savepoints; sets ``execution.checkpointing.savepoint-dir``."""
        self._configuration.set_string(CheckpointingOptions.SAVEPOINT_DIR.key, directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """The default target directory of savepoints; None if unset."""
        return self._configuration.get(CheckpointingOptions.SAVEPOINT_DIR)

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        """The checkpointing mode."""
        return self.get_checkpoint_config().get_checkpointing_mode()

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether unaligned checkpoints are enabled."""
        return self.get_checkpoint_config().is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        """Whether unaligned checkpoints are forced; without effect."""
        return self.get_checkpoint_config().is_force_unaligned_checkpoints()

    def enable_changelog_state_backend(self, enabled: bool) -> Self:
        """Keep keyed state in changelogs, too, if ``state.changelog.storage`` is set. Epochs write changes only, anyway."""
        self._configuration.set_boolean(_CHANGELOG, enabled)
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """The argument of `enable_changelog_state_backend`; None if it was not called."""
        return self._configuration.get_boolean(_CHANGELOG, False) if self._configuration.contains_key(_CHANGELOG) else None

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """The configured value; True by default."""
        return self._configuration.get_boolean(_MIXED_CHAINING, True)

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> Self:
        """Accept a slot sharing group. It has no effect: Spark places the tasks."""
        if not isinstance(slot_sharing_group, SlotSharingGroup):
            raise TypeError(f"register_slot_sharing_group() takes a SlotSharingGroup, not {slot_sharing_group!r}.")
        return self

    def add_jars(self, *jars_path: str) -> None:
        """Log a warning and ignore the jars: Holdfast's connectors need none."""
        _log.warning("add_jars(%s) has no effect: Holdfast's connectors need no jars", ", ".join(jars_path))

    def add_classpaths(self, *classpaths: str) -> None:
        """Log a warning and ignore the class paths: Holdfast's connectors need none."""
        _log.warning("add_classpaths(%s) has no effect: Holdfast's connectors need no jars", ", ".join(classpaths))

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> NoReturn:
        """Refuse cached files.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("there is no distributed cache; send files to the workers with add_python_archive()")

    def close(self) -> None:
        """Do nothing: an environment holds no resources. A running job continues."""

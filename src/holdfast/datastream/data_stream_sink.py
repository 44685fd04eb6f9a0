"""Ends of streams: DataStreamSink, and CloseableIterator over the results of execute_and_collect."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from holdfast.common.job_client import JobClient
from holdfast.common.values.tabular import to_arrow, to_pandas, to_polars
from holdfast.common.values.type_variables import T
from holdfast.connectors.collect import Mailbox
from holdfast.datastream.operations.operator_settings import OperatorSettings
from holdfast.graph.transformations import OperatorTransformation

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CloseableIterator", "DataStreamSink"]


class DataStreamSink(OperatorSettings):
    """A sink and its settings, as returned by ``sink_to``, ``add_sink`` and ``print``."""

    def __init__(self, transformation: OperatorTransformation) -> None:
        self._transformation = transformation

    def _operator(self, call: str) -> OperatorTransformation:
        return self._transformation


class CloseableIterator(Generic[T]):
    """The results of ``execute_and_collect``: an iterator that ends with the job. Closing it cancels the job.

    Examples:
        >>> with stream.execute_and_collect() as results:  # doctest: +SKIP
        ...     for value in results:
        ...         print(value)
    """

    def __init__(self, values: Generator[T, None, None], client: JobClient, mailbox: Mailbox) -> None:
        self._values = values
        self._client = client
        self._mailbox = mailbox

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._values)

    def next(self) -> T:
        """Return the next result.

        Raises:
            StopIteration: the job has ended and all results are read.
            JobFailed: the job failed.
        """
        return next(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.close()

    def to_pandas(self) -> Any:
        """Read the results to their end into a ``pandas.DataFrame``; its columns are those of `as_record`.

        Raises:
            ConfigurationError: pandas is not installed.
            JobFailed: the job failed.
        """
        return to_pandas(self)

    def to_polars(self) -> Any:
        """Read the results to their end into a ``polars.DataFrame``.

        Raises:
            ConfigurationError: Polars is not installed.
            JobFailed: the job failed.
        """
        return to_polars(self)

    def to_arrow(self) -> Any:
        """Read the results to their end into a ``pyarrow.Table``.

        Raises:
            ConfigurationError: pyarrow is not installed.
            JobFailed: the job failed.
        """
        return to_arrow(self)

    def _ipython_display_(self) -> None:
        """Show the latest results as a table that updates until the job has ended. They are not read by this."""
        from holdfast.notebook.widgets import show_table

        result = self._client.get_job_execution_result()
        show_table(self._mailbox, result.done)

    def close(self) -> None:
        """Cancel the job unless it has ended, and wait for its end. Unread results are dropped."""
        if not self._client.get_job_status().result().is_globally_terminal_state():
            self._client.cancel().result()
        self._values.close()

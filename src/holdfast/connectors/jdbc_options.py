"""Options of database connections and of statements, as PyFlink's JDBC connector has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.common.secrets import masked
from holdfast.errors import ConfigurationError

__all__ = ["JdbcConnectionOptions", "JdbcExecutionOptions"]


@dataclass(frozen=True, repr=False)
class JdbcConnectionOptions:
    """A database, as a JDBC URL, and its user; also made by `JdbcConnectionOptionsBuilder`.

    Raises:
        ConfigurationError: the URL is missing.
    """

    db_url: str
    driver_name: str | None = None
    user_name: str | None = None
    password: str | None = None

    def __post_init__(self) -> None:
        if not self.db_url:
            raise ConfigurationError("JdbcConnectionOptions need a URL: call with_url('jdbc:postgresql://host/database').")

    def __repr__(self) -> str:
        return f"JdbcConnectionOptions({self.without_secrets(self.db_url)}, user_name={self.user_name!r})"

    def without_secrets(self, text: str) -> str:
        """A text, such as the URL or an error of the database, without the password."""
        return masked(text, {"password": self.password or ""})

    def get_db_url(self) -> str:
        """The URL."""
        return self.db_url

    def get_driver_name(self) -> str | None:
        """The class of the JVM's driver; None if it was not given."""
        return self.driver_name

    def get_user_name(self) -> str | None:
        """The user; None if it was not given."""
        return self.user_name

    def get_password(self) -> str | None:
        """The password; None if it was not given."""
        return self.password

    class JdbcConnectionOptionsBuilder:
        """Collects the options of a connection.

        Examples:
            >>> builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
            >>> builder.with_url("jdbc:sqlite:/tmp/orders.db").build().get_db_url()
            'jdbc:sqlite:/tmp/orders.db'
        """

        def __init__(self) -> None:
            self._url: str | None = None
            self._driver: str | None = None
            self._user: str | None = None
            self._password: str | None = None

        def with_url(self, url: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """The database: ``jdbc:postgresql://host:port/database`` or ``jdbc:sqlite:path``."""
            self._url = url
            return self

        def with_driver_name(self, driver_name: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """Keep the class of a JVM's driver. Holdfast does not use it: the URL decides on the Python library."""
            self._driver = driver_name
            return self

        def with_user_name(self, user_name: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """The user."""
            self._user = user_name
            return self

        def with_password(self, password: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """The user's password."""
            self._password = password
            return self

        def build(self) -> JdbcConnectionOptions:
            """The options.

            Raises:
                ConfigurationError: the URL is missing.
            """
            return JdbcConnectionOptions(self._url or "", self._driver, self._user, self._password)


@dataclass(frozen=True)
class JdbcExecutionOptions:
    """When rows are written, and how often that is tried; also made by its `builder`.

    Raises:
        ConfigurationError: a number is none, or too small.
    """

    batch_interval_ms: int = 0
    batch_size: int = 5000
    max_retries: int = 3

    def __post_init__(self) -> None:
        for name, least in (("batch_interval_ms", 0), ("batch_size", 1), ("max_retries", 0)):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise ConfigurationError(f"with_{name}() takes a whole number from {least}, not {number!r}.")

    def get_batch_interval_ms(self) -> int:
        """The longest time that rows wait for a batch, in ms; 0 for no limit but the epoch."""
        return self.batch_interval_ms

    def get_batch_size(self) -> int:
        """The number of rows of a batch."""
        return self.batch_size

    def get_max_retries(self) -> int:
        """How often a batch is written again after a failure of the database or the connection to it."""
        return self.max_retries

    @staticmethod
    def defaults() -> JdbcExecutionOptions:
        """Batches of 5000 rows, at the latest at the end of the epoch, and three retries."""
        return JdbcExecutionOptions()

    @staticmethod
    def builder() -> JdbcExecutionOptions.Builder:
        """Begin with the defaults."""
        return JdbcExecutionOptions.Builder()

    class Builder:
        """Collects the options of statements."""

        def __init__(self) -> None:
            self._options = JdbcExecutionOptions()

        def with_batch_size(self, size: int) -> JdbcExecutionOptions.Builder:
            """The number of rows of a batch."""
            self._options = replace(self._options, batch_size=size)
            return self

        def with_batch_interval_ms(self, interval_ms: int) -> JdbcExecutionOptions.Builder:
            """The longest time that rows wait for a batch."""
            self._options = replace(self._options, batch_interval_ms=interval_ms)
            return self

        def with_max_retries(self, max_retries: int) -> JdbcExecutionOptions.Builder:
            """How often a batch is written again after a failure of the database or the connection to it."""
            self._options = replace(self._options, max_retries=max_retries)
            return self

        def build(self) -> JdbcExecutionOptions:
            """The options."""
            return self._options

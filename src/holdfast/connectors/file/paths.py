"""The user's paths: absolute local paths, and URIs of object stores and HDFS."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.stores.object_store import leaves
from holdfast.errors import ConfigurationError

__all__ = ["absolute_path", "is_below", "split_uri"]

_STORES = ("s3", "s3a", "gs", "abfs", "abfss", "wasb", "wasbs", "hdfs")


def absolute_path(uri: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local path or a ``file://`` URI; the URI of an object store or HDFS stays.

    Raises:
        ConfigurationError: the path is empty or names another file system.

    Examples:
        >>> absolute_path("file:///data/a%20b")
        '/data/a b'
        >>> absolute_path("s3://bucket/data/")
        's3://bucket/data'
    """
    text = os.fspath(uri)
    if not text:
        raise ConfigurationError("the path is empty")
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"{text}: a file URI has three slashes; did you mean file:///{parts.netloc}{parts.path}?"
            )
        return os.path.abspath(unquote(parts.path))
    if "://" in text:
        if parts.scheme not in _STORES:
            raise ConfigurationError(
                f"{text}: only local paths, file://, {', '.join(f'{each}://' for each in _STORES)} can be read and written; "
                f"mount {parts.scheme}:// as a directory"
            )
        root, path = split_uri(text)
        return f"{root}/{path}".rstrip("/") if path else f"{root}/"
    return os.path.abspath(os.path.expanduser(text))


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket, container or name node of a URI, and the path in it; for a local path, an empty string before it.

    Examples:
        >>> split_uri("s3://bucket/data/a.csv")
        ('s3://bucket', 'data/a.csv')
        >>> split_uri("/data/a.csv")
        ('', '/data/a.csv')
    """
    scheme, found, rest = uri.partition("://")
    if not found:
        return "", uri
    authority, _, path = rest.partition("/")
    return f"{scheme}://{authority}", path.strip("/")


def is_below(path: str, directory: str) -> bool:
    """Whether a path is that of the file or directory, or of something in the directory.

    Examples:
        >>> is_below("/data/a/b", "/data"), is_below("/data", "/data"), is_below("s3://bucket/a", "s3://bucket/")
        (True, True, True)
        >>> is_below("/database", "/data"), is_below("/data/../etc/passwd", "/data"), is_below("/etc/passwd", "/")
        (False, False, True)
    """
    base = directory.rstrip("/")
    inside = path.removeprefix(base + "/") if path.startswith(base + "/") else ""
    return path == directory or (bool(inside) and not leaves(inside))

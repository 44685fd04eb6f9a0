"""The user's paths: absolute local paths, and URIs of object stores and HDFS."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint import paths
from holdfast.checkpoint.stores.object_store import leaves
from holdfast.errors import ConfigurationError

__all__ = ["absolute_path", "canonical", "is_below", "split_uri"]


def absolute_path(uri: str | os.PathLike[str]) -> str:
    """Return the absolute path of a local path or a ``file://`` URI, or the canonical URI in an object store or HDFS.

    Raises:
        ConfigurationError: the path is empty or names another file system.

    Examples:
        >>> absolute_path("file:///data/a%20b")
        '/data/a b'
        >>> absolute_path("s3a://bucket/data/")
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
        if parts.scheme not in paths.STORES:
            known = ", ".join(f"{each}://" for each in paths.STORES)
            raise ConfigurationError(
                f"{text}: only local paths, file://, {known} can be read and written; mount {parts.scheme}:// as a directory"
            )
        return canonical(text)
    return os.path.abspath(os.path.expanduser(text))


def canonical(path: str) -> str:
    """The one spelling of a file's or directory's URI; an absolute local path stays.

    Examples:
        >>> canonical("s3a://bucket/data/"), canonical("/data")
        ('s3://bucket/data', '/data')
    """
    root, inside = split_uri(path)
    if not root:
        return path
    return f"{root}/{inside}"


def split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket, container or name node of a URI, and the path in it; for a local path, an empty string before it.

    Examples:
        >>> split_uri("s3a://bucket/data/a.csv")
        ('s3://bucket', 'data/a.csv')
        >>> split_uri("/data/a.csv")
        ('', '/data/a.csv')
    """
    if "://" not in uri or uri.startswith("/"):
        return "", uri
    scheme, authority, path = paths.split_uri(uri)
    return f"{scheme}://{authority}", path


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

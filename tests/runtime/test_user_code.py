"""The errors of user functions."""

from __future__ import annotations

import pytest

from holdfast.errors import CorruptFile, StorageError, UserCodeError
from holdfast.runtime.records.user_code import user_error


def test_errors_of_the_storage_are_not_those_of_the_function_that_asks_for_state():
    assert isinstance(user_error(KeyError("k"), "counts", "uid", 1, "key"), UserCodeError)
    for error in (StorageError("s3://bucket does not answer"), CorruptFile("s3://bucket/file", "altered")):
        with pytest.raises(StorageError) as found:
            user_error(error, "counts", "uid", 1, "key")
        assert found.value is error

"""Late records: by the watermark of their own split just before them, in lists and in columns."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from holdfast.runtime.plan.event_time import LateRecords


@pytest.mark.parametrize("form", [list, lambda stamps: array("q", stamps)], ids=["list", "column"])
def a_record_is_late_from_the_watermark_of_its_deadline_on(form: Any):
    """The earliest deadline there may be is the watermark just before the record."""
    for behind, late in ((0, [(1, 2, 9)]), (1, [])):
        found = LateRecords(0, [lambda stamp, behind=behind: stamp - 1 + behind]).find(form([10, 10]), 5)
        assert found == late

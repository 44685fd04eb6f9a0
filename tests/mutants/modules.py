"""The modules that `make mutants` changes, with the tests that must notice; and the changes that no test can notice."""

from __future__ import annotations

MODULES = {
    "runtime/alignment.py": ["runtime/test_alignment.py"],
    "runtime/channels.py": ["runtime/test_channels.py", "runtime/test_channel_state.py"],
    "runtime/clock.py": ["runtime/test_event_times.py", "engine/test_operator_contract.py"],
    "runtime/completion.py": ["runtime/test_completion.py"],
    "runtime/event_time.py": ["runtime/test_late_records.py", "runtime/test_split_merge.py"],
    "runtime/event_times.py": ["runtime/test_event_times.py"],
    "runtime/job_clock.py": ["runtime/test_job_clock.py"],
    "runtime/machine.py": ["runtime/test_machine.py", "simulator/test_protocol.py"],
    "runtime/pacing.py": ["runtime/test_pacing.py"],
    "runtime/redistribution.py": ["runtime/test_redistribution.py", "runtime/test_completion.py"],
    "runtime/restart.py": ["runtime/test_restart.py"],
    "runtime/resumption.py": ["runtime/test_completion.py", "simulator/test_protocol.py"],
    "runtime/rounds.py": ["runtime/test_rounds.py"],
    "runtime/sources.py": ["runtime/test_sources.py"],
    "runtime/split_merge.py": ["runtime/test_split_merge.py", "connectors/test_file_source.py"],
    "runtime/unaligned.py": ["runtime/test_unaligned.py"],
    "runtime/operators/pane_sums.py": ["state/test_windows_against_a_model.py"],
    "state/canonical.py": ["state/test_keys.py"],
    "state/delta_merge.py": ["state/test_compaction.py"],
    "state/key_codec.py": ["state/test_keys.py"],
    "state/key_groups.py": ["state/test_keys.py", "runtime/test_redistribution.py"],
    "state/near_timers.py": ["state/test_timers.py"],
    "state/schema.py": ["state/test_schema.py"],
    "state/timer_slices.py": ["state/test_timers.py"],
    "state/timers.py": ["state/test_timers.py"],
    "state/ttl.py": ["state/test_ttl.py"],
    "checkpoint/log.py": ["checkpoint/test_log.py"],
    "checkpoint/retention.py": ["checkpoint/test_retention.py"],
    "checkpoint/takeover.py": ["checkpoint/test_log.py"],
    "windowing/assigners.py": ["state/test_window_cases.py", "state/test_windows_against_a_model.py"],
    "windowing/triggers.py": ["state/test_triggers_against_a_model.py"],
    "table/changes.py": ["table/test_tables.py"],
    "table/versions.py": ["table/test_versioned_tables.py"],
    "connectors/kafka/committer.py": ["simulator/test_protocol.py"],
}
"""By module, below ``src/holdfast``: files below ``tests``, the quickest first."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "state/delta.py": {
        "if ends[-1] != size - end:": "pieces that lie elsewhere fail their checksums; only the message differs",
    },
    "runtime/operators/pane_sums.py": {
        "if not front and back and back[0][0] < start:": "an earlier turn of the back gives the same sums",
    },
}
"""By module and line: why a change of it leaves the program as it is."""

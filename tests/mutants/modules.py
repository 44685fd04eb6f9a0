"""The modules that `make mutants` changes, with the tests that must notice; and the changes that no test can notice."""

from __future__ import annotations

_LIVES = "test_every_seed_gives_each_record_once_and_leaves_nothing_behind[0]"
"""A few lives of a job in the simulator: all of them take minutes a change."""
MODULES = {
    "runtime/channels/channel_state.py": ["runtime/test_channel_state.py"],
    "runtime/channels/channels.py": ["runtime/test_channels.py", "runtime/test_router.py", "runtime/test_channel_state.py"],
    "runtime/channels/rounds.py": ["runtime/test_rounds.py"],
    "runtime/operators/windows/pane_sums.py": ["runtime/test_pane_sums.py", "state/test_windows_against_a_model.py"],
    "runtime/plan/autoscaling.py": ["runtime/test_autoscaling.py"],
    "runtime/plan/event_time.py": ["runtime/test_late_records.py", "runtime/test_split_merge.py"],
    "runtime/plan/redistribution.py": ["runtime/test_redistribution.py", "runtime/test_completion.py"],
    "runtime/protocol/alarm.py": ["runtime/test_alarm.py"],
    "runtime/protocol/alignment.py": ["runtime/test_alignment.py"],
    "runtime/protocol/completion.py": ["runtime/test_completion.py"],
    "runtime/protocol/epoch.py": [
        "runtime/test_epoch.py",
        "runtime/test_machine.py",
        f"simulator/test_protocol.py::{_LIVES}",
    ],
    "runtime/protocol/failures.py": ["runtime/test_failures.py"],
    "runtime/protocol/machine.py": [
        "runtime/test_machine.py",
        "runtime/test_machine_failures.py",
        "runtime/test_machine_starts.py",
        f"simulator/test_protocol.py::{_LIVES}",
    ],
    "runtime/protocol/pacing.py": ["runtime/test_pacing.py"],
    "runtime/protocol/restart.py": ["runtime/test_restart.py"],
    "runtime/protocol/resumption.py": [
        "runtime/test_resumption.py",
        "runtime/test_completion.py",
        "connectors/test_names_in_pairs.py",
        "engine/test_restore_check.py",
    ],
    "runtime/protocol/savepoint_requests.py": ["runtime/test_machine.py", "runtime/test_savepoint_requests.py"],
    "runtime/protocol/sources.py": ["runtime/test_sources.py", "runtime/test_machine.py"],
    "runtime/protocol/unaligned.py": ["runtime/test_unaligned.py"],
    "runtime/task/event_times.py": ["runtime/test_event_times.py"],
    "runtime/task/split_merge.py": ["runtime/test_split_merge.py", "connectors/test_file_source.py"],
    "runtime/time/clock.py": ["runtime/test_event_times.py", "engine/test_operator_contract.py"],
    "runtime/time/job_clock.py": ["runtime/test_job_clock.py"],
    "state/backends/canonical.py": ["state/test_canonical_parts.py", "state_api/test_bootstrap.py"],
    "state/backends/delta_merge.py": ["state/test_delta_merge.py", "state/test_compaction.py"],
    "state/backends/upkeep.py": ["state/test_upkeep.py"],
    "state/keys/key_codec.py": ["state/test_keys.py", "state/test_equal_map_keys.py"],
    "state/keys/key_groups.py": ["state/test_key_groups.py"],
    "state/rows/ttl.py": ["state/test_ttl.py"],
    "state/stored/delta.py": ["state/test_delta.py", "state/test_stored_forms.py"],
    "state/stored/entry_pieces.py": ["state/test_entry_pieces.py", "state/test_entries.py"],
    "state/stored/schema.py": ["state/test_schema.py"],
    "state/timers/timer_chunks.py": ["state/test_timer_chunks.py", "state/test_timers.py"],
    "state/timers/timer_family.py": ["state/test_timers.py"],
    "state/timers/timer_ticks.py": ["state/test_timers.py"],
    "state/timers/timers.py": ["state/test_timers.py"],
    "state/timers/timing_wheel.py": ["state/test_timers.py"],
    "checkpoint/layers.py": ["checkpoint/test_layers.py"],
    "checkpoint/log.py": ["checkpoint/test_log.py"],
    "checkpoint/milestones.py": ["checkpoint/test_milestones.py"],
    "checkpoint/paths.py": ["checkpoint/test_paths.py"],
    "checkpoint/references.py": ["checkpoint/test_layers.py"],
    "checkpoint/retention.py": ["checkpoint/test_retention.py"],
    "checkpoint/takeover.py": ["checkpoint/test_log.py"],
    "windowing/assigners.py": [
        "state/test_window_parts.py",
        "state/test_ends_of_windows.py",
        "state/test_staggered_windows.py",
        "state/test_window_cases.py",
        "state/test_windows_against_a_model.py",
    ],
    "windowing/continuous_triggers.py": ["state/test_triggers.py", "state/test_window_parts.py"],
    "windowing/counts.py": ["state/test_window_parts.py", "state/test_ends_of_windows.py"],
    "windowing/element_triggers.py": [
        "state/test_window_parts.py",
        "state/test_ends_of_windows.py",
        "state/test_triggers_against_a_model.py",
    ],
    "windowing/evictors.py": ["state/test_window_parts.py", "state/test_ends_of_windows.py"],
    "windowing/sessions.py": ["state/test_window_parts.py", "state/test_ends_of_windows.py"],
    "windowing/triggers.py": ["state/test_triggers.py", "state/test_ends_of_windows.py"],
    "table/best.py": ["table/test_best_rows.py"],
    "table/changes.py": ["table/test_changes_of_tables.py", "table/test_tables.py", "table/test_grouped_streams.py"],
    "table/sliding.py": ["table/test_sliding_windows.py"],
    "table/versions.py": ["table/test_versioned_tables.py"],
    "connectors/file/waiting.py": ["connectors/test_rolling_decisions.py", "connectors/test_rolling_files.py"],
    "connectors/kafka/sink/committer.py": [
        "simulator/test_kafka_committer.py",
        f"simulator/test_protocol.py::{_LIVES}",
    ],
}
"""By module, below ``src/holdfast``: files below ``tests``, or tests in them, the quickest first.

What was noticed when it was last measured, in percent. Of all changes: triggers and continuous_triggers 100, pacing 98,
failures 97, milestones 95, paths 94, event_time 92, evictors 91, counts 88, completion 86, sessions 85. Of 12 to 46 drawn
ones: restart, resumption, timer_ticks and pane_sums 100, redistribution and sources 96, changes and versions 95, canonical,
channel_state and split_merge 94, committer, epoch and timing_wheel 93, key_codec and references 92, timers, alarm, layers,
retention and takeover 90, channels and machine 89, key_groups 88, assigners and timer_chunks 87, best 86, element_triggers
and job_clock 85; of 71 of rounds 86, of 67 of upkeep 94. Of 8 to 12: autoscaling, clock, savepoint_requests, timer_family,
ttl, entry_pieces, sliding and waiting 100, event_times 91, log and unaligned 89, schema 88. Of 7 or less: delta and
alignment 100, delta_merge 86.

Of what was left, with neither a test nor a reason: in machine, a job is cancelled after a savepoint that was to stop it and
was written when the job had failed; in split_merge, the record of an error that names one already.
"""

EQUIVALENT: dict[str, dict[str, str]] = {
    "runtime/channels/channel_state.py": {
        "return [(_StoredLane(first.channel, 0, first.index, watermark, False, watermark, False, "
        "frames=0, next=0, skip=0), [])] -> "
        "return [(_StoredLane(first.channel, 0, first.index, watermark, False, watermark, False, "
        "frames=0, next=0, skip= -1), [])]": "without frames there is nothing to skip",
        "self._rounds.forget()": "it frees memory only: a key without waiting records begins as a new one does",
        "if len(self._timeless(watermark)) < len(self._waiting) or size > _MOST_SORTED: -> "
        "if len(self._timeless(watermark)) < len(self._waiting) or size >= _MOST_SORTED:": "one byte more or less",
    },
    "runtime/channels/channels.py": {
        "self._open: dict[int, Frame] = {}": "`begin` sets it",
        "self._frames: dict[int, int] = {}": "`begin` sets it",
        "self.records = 0 -> self.records = -1": "`begin` sets it",
        "self._relayed = target.level > vertex.level + 1 -> "
        "self._relayed = target.level > vertex.level - 1": "a partition of the next level is below its width",
        "if compiled.IN_USE and type(values) is list and type(targets) is list: -> "
        "if not compiled.IN_USE and type(values) is list and type(targets) is list:": "both ways give the same",
        "self._add(targets[0], values, timestamps, keys) -> "
        "self._add(targets[ -1], values, timestamps, keys)": "all targets are the same there",
        "self._current: tuple[Lane, int, int, bytes] | None = None": "`frames` sets it",
        "alone = self._parallelism == 1 -> alone = self._parallelism == 0": "a short cut",
        "return plain_keys(keys) if isinstance(keys, ColumnKeys) else set(map(type, keys)) <= _PLAIN_KEYS -> "
        "pass": "a short cut",
    },
    "runtime/channels/rounds.py": {
        "self._last = {key: last for key, last in self._last.items() if last > now}": "a key that stays has the same rounds",
        "header = stored[0][:HEADER_SIZE]": "all frames of the lane get it: any one does",
        "self.keys = 0": "it is read behind `take` only",
        "return Frame(frames[-1].watermark, values, timestamps if timed else None, keys, None, late)": "it gets the lane's",
    },
    "checkpoint/log.py": {
        "self._noted = -_NOTED_S  # when `output_becomes_visible` last made a note -> "
        "self._noted = _NOTED_S  # when `output_becomes_visible` last made a note": "the monotonic clock is beyond both",
    },
    "checkpoint/references.py": {
        "return False -> pass": "None is false, too",
    },
    "checkpoint/paths.py": {
        'return f"{path}.{uuid.uuid4().hex[:12]}{PART_SUFFIX}"': "eleven or thirteen digits are as good",
    },
    "runtime/plan/autoscaling.py": {
        "self._scope = Scope(frozenset(), 0)": "the first epoch sets it",
        "self._parallelism = 0 -> self._parallelism = -1": "the first epoch sets it",
        "self._stable_from = 0.0": "the first epoch sets it",
        "return max((self._busy_ms(v) / 1000 / v.parallelism for v in stats.vertices if v.id in self.vertices), "
        "default=0.0) -> "
        "return max((self._busy_ms(v) / 1000 / v.parallelism for v in stats.vertices if v.id in self.vertices), "
        "default= -1.0)": "no load either",
        "load = utilization * (max(arrived, 0.0) / read if read else 1.0) -> "
        "load = utilization * (max(arrived, -1.0) / read if read else 1.0)": "one record is no load",
        "load = utilization * (max(arrived, 0.0) / read if read else 1.0) -> "
        "load = utilization * (max(arrived, 1.0) / read if read else 1.0)": "one record is no load",
    },
    "runtime/protocol/epoch.py": {
        "self.traced = False": "`run` sets it",
    },
    "runtime/protocol/machine.py": {
        "self._now = Instant(0, 0.0) -> self._now = Instant( 1, 0.0)": "`handle` sets it",
        "self._planning_since = 0.0": "the first plan sets it",
        "self._next_epoch = Epoch(0)": "the take-over sets it",
    },
    "runtime/protocol/sources.py": {
        "if latest - min(self._heard.values(), default=0) < 1000 * _SILENT_S: -> "
        "if latest + min(self._heard.values(), default=0) < 1000 * _SILENT_S:": "a short cut",
        "if latest - min(self._heard.values(), default=0) < 1000 * _SILENT_S: -> "
        "if latest - min(self._heard.values(), default= -1) < 1000 * _SILENT_S:": "a short cut",
    },
    "runtime/protocol/unaligned.py": {
        "self._largest = max((report.channel_state for report in reports), default=0) -> "
        "self._largest = max((report.channel_state for report in reports), default= 1)": "one byte slows no source",
    },
    "runtime/task/event_times.py": {
        "further = sorted(time for time in ahead if groups.first <= time[0] <= groups.last) -> "
        "further = sorted(time for time in ahead if groups.first <= time[ 1] <= groups.last)": "a range lies in one subtask",
    },
    "runtime/task/split_merge.py": {
        "return self.watermark -> pass": "the end of time is never passed, as no watermark goes back",
        "batch = timestamps = None  # free the memory for the next batch": "it frees memory only",
        "watermark = 0 if self._generators is None else self._generators[name].watermark -> "
        "watermark = -1 if self._generators is None else self._generators[name].watermark": "it is that of all splits",
    },
    "state/keys/key_codec.py": {
        "return list(map(_encode, keys)) -> pass": "a short cut",
        "return kinds <= _PLAIN or (kinds == _TUPLES and all_plain_tuples(list(keys))) -> pass": "a short cut",
    },
    "state/keys/key_groups.py": {
        "_GOLDEN % (max_parallelism << 32), -> _GOLDEN % (max_parallelism << 33),": "higher bits are masked",
        "return computed": "the other ways give the same, slower",
        "if len(memo) < _MOST_INTEGERS:": "it bounds the cache only",
        "if len(memo) > memo_size:": "it bounds the cache only",
        "memo.clear()": "it bounds the cache only",
        "memo.update(zip(keys, result))": "it fills the cache only",
        "return [digest % max_parallelism for digest in map(_digest, map(_encode, keys))]": "a short cut",
    },
    "state/backends/canonical.py": {
        "dumps = [write_delta(target, stem + DUMP, [])]": "a file without rows holds no more than none",
    },
    "state/backends/upkeep.py": {
        "self.handles: list[KeyedHandle] = []": "`restore` sets it",
        "self._checkpoint = Checkpoint(Epoch(0), ())": "`completed` sets it",
        "self._checkpoint = Checkpoint(Epoch(0), ()) -> "
        "self._checkpoint = Checkpoint(Epoch( -1), ())": "`completed` sets it",
        "self._checkpoint = Checkpoint(Epoch(0), ()) -> self._checkpoint = Checkpoint(Epoch( 1), ())": "`completed` sets it",
        "self._covered = 0 -> self._covered = -1": "`completed` sets it",
        "self._changed = 0.0 -> self._changed = -1.0": "one byte more or less",
        "self._changed = 0.0 -> self._changed = 1.0": "one byte more or less",
        "self._last, self._changed = self.handles[-1].deltas[-1:], 0.0 -> "
        "self._last, self._changed = self.handles[-1].deltas[-1:], -1.0": "one byte more or less",
        "self._covered = deltas.index(self._last[0]) + 1 if self._last and self._last[0] in deltas else 0 -> "
        "self._covered = deltas.index(self._last[ -1]) + 1 if self._last and self._last[0] in deltas else 0": "there is one",
    },
    "state/backends/delta_merge.py": {
        "self.memory = 0 -> self.memory = -1": "one byte more or less",
        "self._unpacked = 0 -> self._unpacked = -1": "one byte more or less",
        "self._added = 0 -> self._added = -1": "one byte more or less",
        "self._added = 0 -> self._added = 1": "one byte more or less",
        "self.kept = 0.0": "`store` sets it",
        "at, kept = 0, 0.0 -> at, kept = 0, -1.0": "the first ones are merged with both",
        "first, merge = at, new_merge() if kept <= _KEPT else DeltaJoin() -> "
        "first, merge = at, new_merge() if kept < _KEPT else DeltaJoin()": "a share of exactly that",
        "while at < len(deltas) and (at < first + _LEAST or merge.memory <= _AT_ONCE): -> "
        "while at < len(deltas) and (at < first + _LEAST or merge.memory < _AT_ONCE):": "one byte more or less",
    },
    "state/timers/timing_wheel.py": {
        "self.tick = -(1 << 62)": "the timers up to the current tick are in order, too, in the heap",
    },
    "state/timers/timer_family.py": {
        "if len(added) + len(removed) < _DENSE:": "it says which timers share a piece",
        "if len(self._changed) > _REPLAYED: -> if len(self._changed) >= _REPLAYED:": "one timer more or less",
    },
    "state/timers/timer_chunks.py": {
        "return first + _SHORT.unpack_from(key, end)[0], decode_key(key[:end]) -> "
        "return first + _SHORT.unpack_from(key, end)[ -1], decode_key(key[:end])": "it is the only one",
        "return list(zip(self.times, owners, strict=True)) -> "
        "return list(zip(self.times, owners, strict=False))": "a stored list has as many times as owners",
        "time = first + _SHORT.unpack_from(key, at - _SHORT.size)[0] -> "
        "time = first + _SHORT.unpack_from(key, at - _SHORT.size)[ -1]": "it is the only one",
        "number = 0 -> number = -1": "one timer more or less",
        "self._chunks[bucket].next += 1 -> self._chunks[bucket].next += 2": "a number may be left out",
        "known.next = max(known.next, 1 + _NUMBER.unpack(key[-_NUMBER.size :])[0]) -> "
        "known.next = max(known.next, 2 + _NUMBER.unpack(key[-_NUMBER.size :])[0])": "a number may be left out",
    },
    "state/stored/delta.py": {
        "if ends[-1] != size - end:": "pieces that lie elsewhere fail their checksums; only the message differs",
    },
    "windowing/assigners.py": {
        "return False -> pass": "None is false, too",
    },
    "table/changes.py": {
        "version = (self._version.value() or 0) + 1 -> version = (self._version.value() or -1) + 1": "any number will do",
        "if version < (self._version.value() or 0): -> if version < (self._version.value() or -1):": "none is below both",
        "yield after, key, version, new, True -> yield after, key, version, new, False": "it counts for removed rows only",
    },
    "table/best.py": {
        "change = (self._changes.value() or 0) + 1 -> change = (self._changes.value() or 0) + 2": "a number may be left out",
    },
    "connectors/kafka/sink/committer.py": {
        '_logger.info("%s: %s was already committed", self._where, what)': "a line in the log",
    },
    "runtime/operators/windows/paned_windows.py": {
        "self._drop_until(min(window[1] - 1, time))": "no later window reads it; it goes at the end of the advance",
    },
    "runtime/operators/windows/pane_sums.py": {
        "if not front and back and back[0][0] < start:": "an earlier turn of the back gives the same sums",
    },
}
"""By module, and line or ``line -> changed line``: why any change of it, or this one, leaves the program as it is."""

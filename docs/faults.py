"""Every fault: what the engine promises, what an operator sees, and the test that shows it.

`docs/generate.py` makes the page of it; a test checks that the tests, reasons, metrics and alerts named here exist.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One row. `injected` is What@At of engine/memory/faults.py; empty where the test causes it otherwise."""

    fault: str
    promise: str
    state: str = ""
    reason: str = ""
    metric: str = ""
    alert: str = ""
    injected: tuple[str, ...] = ()
    tests: tuple[str, ...]


DAMAGE = "tests/integration/test_faults_damage.py"
DEVICE = "tests/integration/test_faults_device.py"
HANGS = "tests/integration/test_faults_hangs.py"
CLOCKS = "tests/integration/test_faults_clocks.py"
MEMORY = "tests/integration/test_faults_memory.py"
DISK = "tests/integration/test_engine_disk.py"
CALLS = "tests/unit/test_device_calls.py"
SCRUB = "tests/integration/test_engine_scrub.py"

PROMISES = (
    Promise(
        fault="A bit flips on the disk or on the way from or to it",
        promise="Found by a checksum before a byte is used. The file is set aside with the reason, the object's other "
        "copies serve, else the prefix is quarantined until it is committed again. A whole file that was read wrongly "
        "once is set aside too: the engine cannot tell.",
        state="QUARANTINED",
        reason="checksum_mismatch",
        metric="kvcache.validations",
        injected=("bit_flip@read", "bit_flip@write"),
        tests=(
            f"{DAMAGE}::test_damage_on_the_way_is_found_set_aside_and_never_served",
            f"{DISK}::test_a_damaged_object_is_found_quarantined_and_never_served",
            f"{SCRUB}::test_a_file_found_damaged_at_start_is_set_aside_with_its_reason",
        ),
    ),
    Promise(
        fault="A bit flips in GPU or host memory",
        promise="On a CPU every load compares checksums and raises `CorruptObject`; the object is let go of. On a GPU "
        "pages are compared when they leave it, not when a lease reads them. What changes between host and GPU tier is "
        "not mapped, and the host keeps its copy.",
        state="QUARANTINED",
        reason="checksum_mismatch",
        metric="kvcache.validations",
        injected=("bit_flip@gpu_write", "bit_flip@gpu_read", "bit_flip@host_write", "bit_flip@host_read"),
        tests=(
            f"{DAMAGE}::test_a_bit_that_flips_in_memory_is_found_and_never_served",
            f"{DAMAGE}::test_bytes_that_change_on_their_way_from_the_host_are_not_mapped_and_the_host_keeps_its_own",
            "tests/integration/test_memory_damage.py::test_a_bit_flipped_on_the_gpu_tier_is_never_served",
        ),
    ),
    Promise(
        fault="A file is cut short, emptied, grown or zeroed",
        promise="As a flipped bit. A file that is shorter than what was written is not published. At a start only "
        "header and tokens are read; pages are proven when they are restored or scrubbed.",
        state="QUARANTINED",
        reason="checksum_mismatch",
        metric="kvcache.validations",
        injected=("truncate@read", "truncate@write"),
        tests=(
            f"{DAMAGE}::test_a_file_shorter_than_what_was_written_is_not_published",
            f"{DAMAGE}::test_damage_on_the_way_is_found_set_aside_and_never_served",
            f"{DISK}::test_a_damaged_object_is_found_quarantined_and_never_served",
            "tests/integration/test_engine_kill.py::test_a_file_torn_by_a_power_cut_is_an_object_less_and_no_more",
        ),
    ),
    Promise(
        fault="A file is missing, or is another object's",
        promise="As a flipped bit: the books go by name, and the header says what a file is.",
        state="QUARANTINED",
        reason="checksum_mismatch",
        metric="kvcache.validations",
        injected=("missing@open", "foreign@open"),
        tests=(
            f"{DAMAGE}::test_damage_on_the_way_is_found_set_aside_and_never_served",
            f"{DISK}::test_two_files_swapped_under_the_engine_are_not_taken_for_each_other",
        ),
    ),
    Promise(
        fault="Strangers' files lie in the folder",
        promise="They are set aside at the start and stop nothing; sub-folders are left alone.",
        tests=(f"{DISK}::test_strangers_in_the_folder_do_not_stop_a_start",),
    ),
    Promise(
        fault="Reads and writes do less than asked for",
        promise="Nobody notices.",
        injected=("short@read", "short@write"),
        tests=(f"{DAMAGE}::test_short_reads_and_writes_are_nobodys_business",),
    ),
    Promise(
        fault="The process is killed, anywhere",
        promise="What has its name is whole. The next start adopts it, deletes what was half written, and serves "
        "nothing else. The folder's lock dies with the process.",
        state="PARTIAL_OFFLOAD",
        alert="engine_silent",
        injected=(
            "crash@open",
            "crash@write",
            "crash@sync",
            "crash@rename",
            "crash@sync_folder",
            "crash@unlink",
        ),
        tests=(
            f"{DEVICE}::test_a_crash_before_any_single_call_leaves_whole_objects_or_none",
            "tests/stress/test_kill.py::test_after_a_kill_everything_published_is_whole_or_set_aside",
            "tests/integration/test_engine_kill.py::test_a_killed_writer_leaves_whole_objects_or_none",
        ),
    ),
    Promise(
        fault="The power is cut",
        promise="As a kill. Bytes are synced before their name is given, names before the copies above are freed; a "
        "name that was lost is an object less.",
        state="PARTIAL_OFFLOAD",
        alert="engine_silent",
        injected=("power_cut@write", "power_cut@sync", "power_cut@rename", "power_cut@sync_folder"),
        tests=(
            f"{DEVICE}::test_a_crash_before_any_single_call_leaves_whole_objects_or_none",
            f"{DISK}::test_bytes_whose_names_may_not_last_do_not_replace_those_on_the_gpu",
        ),
    ),
    Promise(
        fault="The disk is full (ENOSPC)",
        promise="At any open, write, fsync, rename or unlink: nothing half-written is left, the books equal the files, "
        "the prefix stays where it was or is evicted for room. Not tried again: room comes from eviction.",
        reason="no_room_below",
        metric="kvcache.tier.breaker",
        injected=("no_space@open", "no_space@write", "no_space@sync", "no_space@rename", "no_space@sync_folder"),
        tests=(
            f"{DEVICE}::test_an_error_at_any_single_call_of_the_device_leaks_nothing",
            f"{CALLS}::test_an_error_that_lasts_is_tried_once",
        ),
    ),
    Promise(
        fault="The device fails (EIO)",
        promise="Tried again up to three times with jitter, within the deadline. Five failures in a row open the "
        "tier's breaker: requests are planned without it, and after 5 s one trial at a time may close it.",
        reason="tier_unavailable",
        metric="kvcache.recoveries",
        alert="recovery_failure_rate",
        injected=("io_error@open", "io_error@read", "io_error@write", "io_error@sync", "io_error@rename"),
        tests=(
            f"{DEVICE}::test_an_error_at_any_single_call_of_the_device_leaks_nothing",
            f"{DEVICE}::test_an_error_that_passes_is_tried_again_and_the_request_is_served",
            f"{DEVICE}::test_reads_that_go_on_failing_open_the_breaker_and_one_trial_closes_it",
            f"{CALLS}::test_a_trial_is_one_call",
        ),
    ),
    Promise(
        fault="Files cannot be deleted",
        promise="One that hangs holds the thread that met it, for `restore_timeout_s` at most, and no other. They are "
        "tried again, count against the quota until they are gone, and nothing more is evicted for "
        "room that does not come.",
        reason="no_room_below",
        metric="kvcache.tier.bytes",
        injected=("io_error@unlink", "hang@unlink"),
        tests=(
            f"{DEVICE}::test_files_that_cannot_be_deleted_count_against_the_quota_and_evict_nobody_else",
            f"{HANGS}::test_a_hanging_delete_stops_no_request_and_is_counted_once",
            f"{HANGS}::test_a_hanging_delete_holds_only_the_thread_that_met_it",
            "tests/integration/test_engine_sweep.py::"
            "test_a_device_that_cannot_delete_costs_a_request_nothing_and_is_asked_again",
        ),
    ),
    Promise(
        fault="No file descriptors are left (EMFILE, ENFILE)",
        promise="As a device that fails: another try may go better.",
        reason="tier_unavailable",
        metric="kvcache.recoveries",
        injected=("no_files@open",),
        tests=(
            f"{DEVICE}::test_an_error_that_passes_is_tried_again_and_the_request_is_served",
            f"{CALLS}::test_an_error_that_may_pass_is_tried_again_after_a_wait_with_jitter",
        ),
    ),
    Promise(
        fault="The disk is slow",
        promise="A request waits no longer than its deadline and is served without what is late; the restore ends for "
        "the next one. Plans reckon with the speed that was measured.",
        state="PARTIAL_OFFLOAD",
        reason="restore_late",
        metric="kvcache.tier.io.duration",
        alert="recovery_failure_rate",
        injected=("slow@read",),
        tests=(
            f"{HANGS}::test_a_slow_read_is_waited_for_within_the_deadline",
            f"{HANGS}::test_a_read_slower_than_the_deadline_ends_the_restore_and_the_prefix_stays_below",
        ),
    ),
    Promise(
        fault="A read or write hangs",
        promise="A request leaves at its deadline. The worker leaves after `restore_timeout_s` (and 1 s for each 50 "
        "MB): the call is counted as stuck, the breaker opens at once, other work goes on. What the call brings later "
        "is thrown away; the GPU slots it reads into are free once it is back. With 4 calls out no more are begun. The "
        "folder is given to others once the last one is back.",
        state="PARTIAL_OFFLOAD",
        reason="tier_unavailable",
        metric="kvcache.tier.stuck",
        alert="recovery_failure_rate",
        injected=("hang@read", "hang@open", "hang@write", "hang@sync", "hang@rename"),
        tests=(
            f"{HANGS}::test_a_hanging_read_holds_neither_its_request_nor_its_worker_and_its_bytes_are_thrown_away",
            f"{HANGS}::test_a_read_that_hangs_in_the_middle_of_the_pages_never_writes_to_slots_of_others",
            f"{HANGS}::test_a_request_leaves_a_hanging_read_at_its_own_deadline",
            f"{HANGS}::test_a_device_that_never_answers_costs_a_bounded_number_of_threads",
            f"{HANGS}::test_a_hanging_write_lets_the_commit_go_on_and_leaves_no_file_when_it_comes_back",
            f"{HANGS}::test_a_folder_is_given_to_others_only_when_the_last_call_is_back",
            f"{CALLS}::test_a_call_that_does_not_come_back_opens_the_breaker_at_once_and_its_result_is_discarded",
        ),
    ),
    Promise(
        fault="The device fails or hangs at the start",
        promise="The start ends in a sentence that names the file; no thread and no lock stay behind.",
        reason="tier_unavailable",
        injected=("io_error@scan", "hang@scan"),
        tests=(
            f"{DEVICE}::test_a_start_on_a_device_that_fails_or_hangs_ends_in_a_sentence",
            f"{DISK}::test_a_start_that_fails_leaves_no_thread_and_no_lock",
        ),
    ),
    Promise(
        fault="The GPU has no memory",
        promise="A commit is refused and keeps nothing; a restore leaves the prefix below; a load raises `OutOfMemory` "
        "and the next one works; a compaction moves nothing.",
        reason="out_of_memory",
        metric="kvcache.recoveries",
        injected=("out_of_memory@gpu_take", "out_of_memory@gpu_write", "out_of_memory@gpu_read"),
        tests=(
            f"{MEMORY}::test_a_gpu_without_room_refuses_the_commit_and_keeps_nothing_of_it",
            f"{MEMORY}::test_a_gpu_without_memory_for_the_copy_refuses_the_commit_and_keeps_nothing_of_it",
            f"{MEMORY}::test_a_gpu_without_memory_for_a_load_raises_and_the_next_load_works",
            f"{MEMORY}::test_a_gpu_without_memory_for_a_restore_leaves_the_prefix_below",
            f"{MEMORY}::test_a_compaction_without_memory_moves_nothing_and_loses_nothing",
        ),
    ),
    Promise(
        fault="The host has no memory",
        promise="What must leave the GPU goes to the disk or is evicted; a restore leaves the prefix below. The "
        "breaker stays as it is: this is not the device's fault.",
        state="PARTIAL_OFFLOAD",
        reason="no_room",
        metric="kvcache.recoveries",
        injected=(
            "out_of_memory@host_take",
            "out_of_memory@host_write",
            "out_of_memory@host_read",
            "out_of_memory@read",
        ),
        tests=(
            f"{MEMORY}::test_a_host_without_memory_sends_what_must_leave_to_the_disk",
            f"{MEMORY}::test_a_host_without_memory_for_a_read_leaves_the_prefix_below_and_the_breaker_closed",
            f"{CALLS}::test_a_lack_of_memory_says_nothing_about_the_device",
        ),
    ),
    Promise(
        fault="A worker's thread dies, or its work raises what nobody expects",
        promise="A thread that dies between two items is replaced and no item is lost. An error in an item goes to who "
        "asked for it; no mark, pin or slot stays behind. Both are counted in `queues` of the engine's stats.",
        injected=("death@worker",),
        tests=(
            f"{MEMORY}::test_a_worker_that_dies_is_replaced_and_its_work_is_done",
            f"{MEMORY}::test_an_error_nobody_expects_in_a_restore_is_raised_and_no_mark_stays",
        ),
    ),
    Promise(
        fault="The wall clock jumps",
        promise="Lives still increase, files never share a name, and no byte is mixed up. Pins and a mode's expiry are "
        "wall-clock times and move with it.",
        injected=("jump@wall_clock",),
        tests=(f"{CLOCKS}::test_a_wall_clock_that_jumps_mixes_up_no_life_no_name_and_no_byte",),
    ),
    Promise(
        fault="The monotonic clock leaps (a suspended host)",
        promise="Leases expire and restores are late; nothing else.",
        reason="restore_late",
        metric="kvcache.lease.age",
        injected=("jump@monotonic_clock",),
        tests=(
            f"{CLOCKS}::test_a_monotonic_clock_that_leaps_expires_leases_and_nothing_else",
            f"{CLOCKS}::test_a_leap_in_the_middle_of_a_restore_makes_it_late_and_no_worse",
        ),
    ),
    Promise(
        fault="Two engines use one folder",
        promise="The second one is refused with `folder_locked`; the first goes on.",
        tests=(
            f"{DISK}::test_a_folder_serves_one_engine_at_a_time",
            "tests/integration/test_replay_processes.py::test_a_second_engine_host_on_a_folder_is_refused_in_a_sentence",
        ),
    ),
    Promise(
        fault="The control plane goes away and comes back",
        promise="The engine serves on with its last settings. Outcomes, transitions and counters wait, bounded, and "
        "arrive; the history has no gap. A command runs once.",
        metric="kvcache.telemetry.dropped",
        alert="engine_silent",
        tests=(
            "tests/integration/test_outages.py::test_an_engine_serves_through_outages_and_its_history_has_no_gap",
            "tests/integration/test_agent.py::test_an_outcome_outlives_an_outage_of_the_control_plane",
            "tests/integration/test_agent.py::test_the_engine_keeps_its_last_settings_without_a_control_plane",
        ),
    ),
    Promise(
        fault="The telemetry receiver goes away, comes back, or refuses a batch",
        promise="Batches are kept up to a bound and sent again, oldest first; a batch that is never taken does not "
        "hold up the others. What is given up is counted and shows as a gap, which a snapshot closes.",
        metric="kvcache.telemetry.dropped",
        alert="history_gaps_open",
        tests=(
            "tests/integration/test_agent_export.py::test_what_was_said_during_an_outage_arrives_after_it",
            "tests/unit/test_span_sender.py::test_the_oldest_are_given_up_when_too_many_wait_and_are_counted",
            "tests/unit/test_span_sender.py::test_a_batch_the_receiver_never_takes_does_not_hold_up_the_others",
        ),
    ),
    Promise(
        fault="All of these at once, for a long time",
        promise="No wrong byte; at every pause the books balance and no page, file or lease is left over; memory stays "
        "flat (`make stress`).",
        tests=(
            "tests/stress/test_soak.py::"
            "test_traffic_commands_caps_restarts_and_faults_at_once_leave_nothing_wrong_and_nothing_over",
        ),
    ),
)

PREFACE = """# Faults

What can go wrong below and around an engine, what it promises then, what an operator sees, and the test that shows it.
In every case: nothing wrong is served, and when the fault is over the engine is as it was without a restart.

Sees: the state of the prefix, the reason of a request, commit or command, the metric that moves, the alert that fires.
`kvcache.tier.breaker` shows for every tier whether it is in use, `io` in the engine's stats how its device behaves;
`kvdeck quarantine` lists what was set aside and why.

Faults are caused on purpose by `CacheEngine(..., faults=Faults(...))` (`engine/memory/faults.py`) and by nothing else:
no setting and no variable reaches it, and a command only in an engine host that was started with `--allow-faults`
(`engine/memory/drill.py`), from an admin, for a time ([game days](../howto/game-days.md)). An engine that was handed
some says so in its resource (`kvdeck.faults.armed`) and in its stats (`faults`).
"""


def page() -> str:
    lines = [PREFACE, "| fault | promise | state | reason | metric | alert |", "|---|---|---|---|---|---|"]
    for row in PROMISES:
        seen = [f"`{text}`" if text else "" for text in (row.state, row.reason, row.metric, row.alert)]
        lines.append(f"| {row.fault} | {row.promise} | {' | '.join(seen)} |")
    lines += ["", "## Shown by", "", "| fault | injected as | tests |", "|---|---|---|"]
    for row in PROMISES:
        names = "<br>".join(f"`{test.split('::')[1]}` ({test.split('::')[0]})" for test in row.tests)
        lines.append(f"| {row.fault} | {', '.join(f'`{i}`' for i in row.injected)} | {names} |")
    return "\n".join([*lines, ""])

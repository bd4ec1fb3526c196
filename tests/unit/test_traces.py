"""Traces: both published forms are read a line at a time, and a broken line is named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from controlplane.workload.traces import Trace, TraceError, output_of

MOONCAKE = {"timestamp": 1500, "input_length": 1200, "output_length": 7, "hash_ids": [0, 1, 2]}


def write(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_mooncake_line_is_read_in_milliseconds_and_blocks_of_512(tmp_path):
    trace = Trace(write(tmp_path, MOONCAKE))
    (request,) = trace
    assert (trace.block_tokens, trace.time_unit) == (512, "ms")
    assert request.at_s == 1.5
    assert (request.line, request.input_tokens, request.output_tokens) == (1, 1200, 7)
    assert request.hash_ids == (0, 1, 2)
    assert request.session == ""


def test_a_bailian_trace_is_read_in_seconds_and_blocks_of_16_with_chats_as_sessions(tmp_path):
    first = {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 3}
    second = {"chat_id": 9, "parent_chat_id": 7, "timestamp": 2.25, "input_length": 50, "output_length": 3}
    third = {"chat_id": 11, "parent_chat_id": 9, "timestamp": 3, "input_length": 50, "output_length": 3}
    path = write(
        tmp_path,
        first | {"hash_ids": [1, 2, 3]},
        second | {"hash_ids": [1, 2, 4, 5]},
        third | {"hash_ids": [1, 2, 4, 6]},
    )
    trace = Trace(path)
    requests = list(trace)
    assert (trace.block_tokens, trace.time_unit) == (16, "s")
    assert [r.at_s for r in requests] == [0.5, 2.25, 3.0]
    assert {r.session for r in requests} == {"7"}


def test_a_session_id_is_taken_as_it_is(tmp_path):
    (request,) = Trace(write(tmp_path, MOONCAKE | {"session_id": "d80534b2"}))
    assert request.session == "d80534b2"


def test_block_size_and_time_unit_can_be_given(tmp_path):
    (request,) = Trace(write(tmp_path, MOONCAKE), block_tokens=600, time_unit="s")
    assert request.at_s == 1500


def test_equal_ids_give_equal_tokens_and_other_ids_other_ones(tmp_path):
    other = MOONCAKE | {"hash_ids": [0, 1, 2**31]}
    trace = Trace(write(tmp_path, MOONCAKE, other))
    first, second = (trace.tokens_of(r) for r in trace)
    assert first.dtype == np.int32
    assert first.shape == (1200,)
    assert first.min() >= 0
    assert np.array_equal(first[:1024], second[:1024])
    assert not np.array_equal(first[1024:1026], second[1024:1026])
    assert (first[1024:] != second[1024:]).mean() > 0.9


def test_a_block_cut_short_is_the_start_of_the_whole_block(tmp_path):
    whole = MOONCAKE | {"input_length": 1536}
    trace = Trace(write(tmp_path, MOONCAKE, whole))
    short, full = (trace.tokens_of(r) for r in trace)
    assert np.array_equal(short, full[:1200])


def test_a_last_partial_block_without_an_id_is_the_requests_own(tmp_path):
    line = MOONCAKE | {"hash_ids": [0, 1]}
    trace = Trace(write(tmp_path, line, line), block_tokens=512)
    first, second = (trace.tokens_of(r) for r in trace)
    assert len(first) == len(second) == 1200
    assert np.array_equal(first[:1024], second[:1024])
    assert first[1024] != second[1024]


def test_outputs_are_the_requests_own_and_the_same_in_every_reading(tmp_path):
    trace = Trace(write(tmp_path, MOONCAKE, MOONCAKE))
    outputs = [output_of(r) for r in trace]
    assert [len(o) for o in outputs] == [7, 7]
    assert not np.array_equal(outputs[0], outputs[1])
    assert np.array_equal(outputs[1], output_of(list(trace)[1]))


def test_requests_carry_prompt_output_and_namespace(tmp_path):
    (request,) = Trace(write(tmp_path, MOONCAKE, MOONCAKE)).requests("tenant-a", limit=1)
    assert request.namespace == "tenant-a"
    assert len(request.tokens) == 1207
    assert np.array_equal(request.tokens[:1200], request.prompt)


def test_blank_lines_are_passed_over_but_counted(tmp_path):
    requests = list(Trace(write(tmp_path, MOONCAKE, "", MOONCAKE)))
    assert [r.line for r in requests] == [1, 3]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"timestamp": 0, "inp', "not JSON"),
        ("[1, 2]", "not an object"),
        ("[" * 100_000, "not JSON"),
        ({k: v for k, v in MOONCAKE.items() if k != "hash_ids"}, "'hash_ids' is missing"),
        ({k: v for k, v in MOONCAKE.items() if k != "timestamp"}, "'timestamp' is missing"),
        (MOONCAKE | {"hash_ids": [0]}, "too few for input_length 1200"),
        (MOONCAKE | {"hash_ids": [0, 1, -2]}, "holds -2"),
        (MOONCAKE | {"hash_ids": [0, 1, 2**62]}, "2\\*\\*62"),
        (MOONCAKE | {"hash_ids": [0, 1, "x"]}, "holds 'x'"),
        (MOONCAKE | {"hash_ids": "0,1,2"}, "hash_ids is str"),
        (MOONCAKE | {"input_length": -1}, "input_length is -1"),
        (MOONCAKE | {"input_length": 1200.5}, "input_length is 1200.5"),
        (MOONCAKE | {"output_length": True}, "output_length is True"),
        (MOONCAKE | {"timestamp": -3}, "timestamp is -3"),
        (MOONCAKE | {"timestamp": "soon"}, "timestamp is 'soon'"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "timestamp is nan"),
    ],
)
def test_a_broken_line_is_named_after_everything_before_it_was_delivered(tmp_path, line, problem):
    path = write(tmp_path, MOONCAKE, MOONCAKE, line, MOONCAKE)
    delivered = []
    with pytest.raises(TraceError, match=problem) as caught:
        delivered.extend(request.line for request in Trace(path))
    assert delivered == [1, 2]
    assert caught.value.line == 3
    assert str(path) in str(caught.value)
    assert "line 3" in str(caught.value)


def test_bytes_that_are_no_text_are_a_broken_line(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json.dumps(MOONCAKE).encode() + b"\n\xff\xfe{}\n")
    with pytest.raises(TraceError, match="line 2: not JSON"):
        list(Trace(path))


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(TraceError, match="cannot be opened: No such file"):
        Trace(tmp_path / "none.jsonl")


def test_impossible_overrides_are_refused(tmp_path):
    path = write(tmp_path, MOONCAKE)
    with pytest.raises(TraceError, match="block of 1 tokens"):
        Trace(path, block_tokens=1)
    with pytest.raises(TraceError, match="time unit 'min'"):
        Trace(path, time_unit="min")

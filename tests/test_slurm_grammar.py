"""Times and sizes survive the way to Slurm and back; what Slurm prints instead of a number is never a number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.recipe.schema import Cluster, Component
from prorl_cli.slurm.grammar import gpu_directive, memory_text, parse_time, time_text


@given(st.integers(0, 10**9).map(lambda tenths: tenths / 10))
def test_a_time_is_never_shortened_on_its_way_to_slurm(seconds):
    assert seconds <= parse_time(time_text(seconds)) < seconds + 1


@given(st.integers(min_value=1, max_value=2**50))
def test_a_size_is_rounded_up_to_a_kib_at_most(size):
    text = memory_text(size)
    assert size <= int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]] < size + 1024


@pytest.mark.parametrize(
    "size, text", [(2**36, "64G"), (240 * 2**30, "240G"), (3 * 2**19, "1536K"), (2**20, "1M"), (1, "1K")]
)
def test_sizes_are_whole_numbers(size, text):
    assert memory_text(size) == text


@pytest.mark.parametrize(
    "seconds, text", [(0.5, "0-00:00:01"), (90, "0-00:01:30"), (86400, "1-00:00:00"), (93784, "1-02:03:04")]
)
def test_times_leave_no_part_to_be_guessed(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("10", 600), ("10:00", 600), ("1:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400), ("2-03:04:05", 183845),
        ("100-00:00:00", 8640000), ("00:01.250", 1), (" 5:00 ", 300), ("365-0", 31536000),
        ("UNLIMITED", math.inf), ("infinite", math.inf), ("INFINITE", math.inf),
    ],
)  # fmt: skip
def test_every_spelling_of_a_time_limit_is_read(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text", ["Partition_Limit", "INVALID", "NOT_SET", "N/A", "", "None", "1:2:3:4", "-5:00", "90m", "1-"]
)
def test_what_is_no_time_is_none_and_not_zero(text):
    assert parse_time(text) is None


def test_gpus_are_asked_for_the_way_the_site_wants():
    typed, untyped = Component(gpus=8, gpu_type="h100"), Component(gpus=2)
    gres, per_node = Cluster(), Cluster(gpu_option="gpus-per-node")
    assert gpu_directive(gres, typed) == ("gres", "gpu:h100:8")
    assert gpu_directive(gres, untyped) == ("gres", "gpu:2")
    assert gpu_directive(per_node, typed) == ("gpus-per-node", "h100:8")
    assert gpu_directive(per_node, untyped) == ("gpus-per-node", "2")

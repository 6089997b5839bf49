"""Output of any length keeps both its ends, says exactly what is missing, and is never cut inside a character."""

import re

from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.sandbox.boxed.bounded import Bounded


def fed(data, size, **limits):
    bounded = Bounded(**limits)
    for start in range(0, len(data), size):
        bounded.feed(data[start : start + size])
    return bounded


def test_what_fits_comes_back_whole():
    data = ("é€𝄞\0" * 100).encode() + b"\xff"
    assert fed(data, 7).text() == data.decode(errors="replace")
    assert fed(data, 7).omitted == 0
    assert Bounded().text() == ""


@given(st.text(max_size=200), st.integers(1, 50), st.integers(0, 20), st.integers(1, 20))
def test_text_is_cut_between_characters_and_the_count_is_exact(text, size, head, tail):
    data = text.encode()
    bounded = fed(data, size, head=head, tail=tail)
    if len(data) <= head + tail:
        assert bounded.text() == text
    else:
        pattern = rf"(.*)\n\[… {bounded.omitted} bytes omitted …\]\n(.*)"
        before, after = re.fullmatch(pattern, bounded.text(), re.DOTALL).groups()
        assert text.startswith(before) and text.endswith(after)
        assert len(before.encode()) + bounded.omitted + len(after.encode()) == len(data)
        assert head - 3 <= len(before.encode()) <= head and tail - 3 <= len(after.encode()) <= tail


@given(st.binary(max_size=300), st.integers(1, 50))
def test_bytes_that_are_no_text_are_counted_as_exactly(data, size):
    bounded = fed(data, size, head=50, tail=40)
    assert bounded.omitted >= len(data) - 90
    assert str(bounded.omitted) in bounded.text() or bounded.omitted == 0


def test_a_gigabyte_is_taken_in_bounded_memory_and_at_speed():
    bounded = Bounded()
    block = b"x" * 2**20
    for _ in range(1024):
        bounded.feed(block)
    assert bounded.omitted == 2**30 - 2**17
    assert len(bounded.text()) < 2**17 + 100

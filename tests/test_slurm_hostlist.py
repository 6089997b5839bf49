"""Host lists as Slurm writes them are expanded name by name, and garbage is refused, not guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.slurm.hostlist import MOST, expand

PLAIN = st.from_regex(r"[a-z](?:[a-z0-9.-]{0,6}[a-z])?", fullmatch=True)


@st.composite
def bracket(draw):
    """One `[…]` and the numbers that it means."""
    texts, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        first, width = draw(st.integers(0, 120)), draw(st.integers(1, 4))
        last = first + draw(st.integers(0, 4))
        texts.append(f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}")
        numbers += [f"{number:0{len(f'{first:0{width}d}')}d}" for number in range(first, last + 1)]
    return f"[{','.join(texts)}]", numbers


@st.composite
def entry(draw):
    """One entry of a list, with up to three brackets, and its hosts."""
    text = draw(PLAIN)
    hosts = [text]
    for _ in range(draw(st.integers(0, 3))):
        inside, numbers = draw(bracket())
        after = draw(st.sampled_from(["", "-x", ".a", "-"]))
        text += inside + after
        hosts = [host + number + after for host in hosts for number in numbers]
    return text, hosts


@given(st.lists(entry(), min_size=1, max_size=4))
def test_a_list_means_the_hosts_of_its_entries_in_order(entries):
    assert expand(",".join(text for text, _ in entries)) == [host for _, hosts in entries for host in hosts]


@given(st.text(alphabet="ab1-,[] .(", max_size=12))
def test_anything_else_is_refused_and_nothing_else_happens(text):
    try:
        assert all(host and not set("[], (") & set(host) for host in expand(text))
    except ValueError as error:
        assert text in str(error)


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("", []),
        ("linux1", ["linux1"]),
        ("a[1-3,07-09]-x[0-1]", [f"a{n}-x{m}" for n in ("1", "2", "3", "07", "08", "09") for m in (0, 1)]),
        ("a-b-c[09-11],d", ["a-b-c09", "a-b-c10", "a-b-c11", "d"]),
        ("node07i,node[08-09]i", ["node07i", "node08i", "node09i"]),
        ("n[1],n1", ["n1", "n1"]),
        ("rack1-n[1-2].site.org", ["rack1-n1.site.org", "rack1-n2.site.org"]),
    ],
)
def test_the_lists_that_broke_other_launchers(text, hosts):
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "linux[1",
        "linux1]",
        "a[]",
        "a[1-]",
        "a[3-1]",
        "a[x]",
        "a[1,,2]",
        "a,,b",
        ",a",
        "a,",
        "(null)",
        "None assigned",
        "a[[1]]",
        f"a[0-{MOST}]",
        "a[0-999][0-999]",
        "a b",
        "a;rm",
    ],
)
def test_garbage_is_refused(text):
    with pytest.raises(ValueError, match="in the host list"):
        expand(text)

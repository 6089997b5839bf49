"""Our own expansion of host lists gives what Slurm's gives."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_cli.slurm.hostlist import expand

PREFIXES = st.from_regex(r"[a-z][a-z0-9._-]{0,6}[a-z._-]", fullmatch=True)
NUMBERS = st.integers(0, 1200)


@st.composite
def ranges(draw):
    first, length, width = draw(NUMBERS), draw(st.integers(0, 12)), draw(st.integers(1, 5))
    start = f"{first:0{width}d}"
    return start if draw(st.booleans()) else f"{start}-{first + length:0{len(start)}d}"


@st.composite
def entries(draw):
    """`gpu7`, `gpu[01-03,7]`, `rack[1-2]-node[3,5]`: Slurm takes nothing behind the last bracket."""
    text = draw(PREFIXES) + draw(st.sampled_from(["", "9"]))
    for number in range(draw(st.integers(0, 2))):
        text += draw(st.sampled_from(["", "-", "-ib"])) if number else ""
        text += f"[{','.join(draw(st.lists(ranges(), min_size=1, max_size=4)))}]"
    return text


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries(), min_size=1, max_size=5).map(",".join))
def test_every_host_list_expands_as_slurm_expands_it(cluster, text):
    assert expand(text) == cluster.run("scontrol", "show", "hostnames", text).split()

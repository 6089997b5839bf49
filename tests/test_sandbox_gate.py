"""The gate of a node: so many boxes on their way at once, whoever starts them, and none held up by the dead."""

import os
import subprocess
import sys

from prorl_cli.sandbox.apptainer import gate_widths
from prorl_cli.sandbox.boxed.gate import Gate, give_back

HOLDER = (
    "import sys, time\nfrom prorl_cli.sandbox.boxed.gate import Gate\n"
    "permit = Gate(sys.argv[1], {'node': 2, 'image-a': 1}).enter()\nprint(len(permit), flush=True)\ntime.sleep(60)"
)


def test_so_many_pass_and_a_place_is_free_again_once_it_is_given_back(tmp_path):
    folder = str(tmp_path / "gates")
    one, other = Gate(folder, {"node": 3, "image-a": 2}), Gate(folder, {"node": 3, "image-b": 2})
    permits = [one.enter(), one.enter()]
    assert all(len(permit) == 2 for permit in permits)
    assert one.enter() == [], "two of that image are on their way"
    permits.append(other.enter())
    assert permits[-1] and other.enter() == [], "three of this node are on their way"
    give_back(permits[0])
    give_back(permits[0])
    assert other.enter()
    one.tidy()
    other.tidy()
    assert os.listdir(tmp_path) == []


def test_the_place_of_a_killed_process_is_free_at_once(tmp_path):
    gate = Gate(str(tmp_path), {"node": 2, "image-a": 1})
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "2\n"
        assert gate.enter() == []
        gate.tidy()
        assert gate.enter() == [], "what is held is not tidied away"
        holder.kill()
        holder.wait()
    assert gate.enter()


def test_a_place_that_was_given_back_is_free_though_a_fork_holds_a_copy_of_it(tmp_path):
    gate = Gate(str(tmp_path), {"node": 1})
    permit = gate.enter()
    copy = os.dup(permit[0])
    give_back(permit)
    assert gate.enter()
    os.close(copy)


def test_a_node_lets_more_pass_the_more_cores_it_has_and_images_have_gates_of_their_own():
    small, large, other = gate_widths("/a.sif", 2), gate_widths("/a.sif", 128), gate_widths("/b.sif", 128)
    assert list(small.values()) == [4, 4] and list(large.values()) == [64, 32]
    assert small.keys() == large.keys() != other.keys()

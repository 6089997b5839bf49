"""Who removes an ended box's folder takes his time, and nobody waits for his end to learn of another's."""

import os
import signal
import stat

from prorl_cli.sandbox.boxed.removing import Removers


def test_a_remover_holds_nothing_of_the_process_that_it_came_from(tmp_path):
    reader, writer = os.pipe()
    removers = Removers(become=signal.pause)
    removers.remove(str(tmp_path))
    os.close(writer)
    assert os.read(reader, 1) == b"", "the end of file comes while the remover is at work"
    os.close(reader)
    (pid,) = removers.at_work
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM, "no handler of its zygote's runs in it"


def test_all_of_the_folder_goes_whatever_its_modes(tmp_path):
    folder = tmp_path / "box"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(stat.S_IRUSR)
    removers = Removers()
    removers.remove(str(folder))
    (pid,) = removers.at_work
    os.waitpid(pid, 0)
    assert not folder.exists()

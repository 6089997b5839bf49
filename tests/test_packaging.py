"""The wheel carries all that prorl ships, and a login node runs the command line without torch."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture
def installed(wheel, tmp_path):
    """The wheel unpacked far from the checkout, as pip would."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def run_there(installed, code):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=installed.parent, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_the_installed_wheel_finds_every_recipe_template_and_definition(installed):
    code = (
        "from prorl_cli.rundir import shipped\n"
        "for kind in ('recipes', 'slurm_templates', 'sif_defs'):\n"
        "    print(kind, sorted(p.name for p in shipped(kind).iterdir()))\n"
    )
    for line in run_there(installed, code).splitlines():
        kind, _, names = line.partition(" ")
        assert eval(names) == sorted(path.name for path in (ROOT / kind).iterdir())


def test_every_shipped_recipe_loads_from_the_installed_wheel(installed):
    code = (
        "from prorl_cli.recipe import load_recipe\nfrom prorl_cli.rundir import shipped\n"
        "print([load_recipe(path).name for path in sorted(shipped('recipes').glob('*.yaml'))])"
    )
    assert "quickstart" in run_there(installed, code)


def test_the_wheel_puts_nothing_but_prorl_into_site_packages(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"prorl_cli"}
    assert "prorl_cli/py.typed" in zipfile.ZipFile(wheel).namelist()


HIDE_TRAINING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('torch', 'transformers', 'starlette', 'uvicorn', 'numpy', 'safetensors', 'reasoning_gym'):
            raise ImportError(f'{name} is not on a login node')
sys.meta_path.insert(0, Hidden())
sys.argv = ['prorl', *%r]
from prorl_cli.cli import main
main()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["ls"], ["init"], ["recipe", "schema"], ["--version"]])
def test_a_login_node_without_torch_runs_the_command_line(installed, arguments):
    assert run_there(installed, HIDE_TRAINING % (arguments,)) or arguments == ["ls"]


def test_a_login_node_checks_a_recipe_whose_tasks_are_files(installed, tmp_path):
    rows = "\n".join(f'{{"question": "What is {n} + 1?", "answer": {n + 1}}}' for n in range(30))
    (tmp_path / "tasks.jsonl").write_text(rows)
    (tmp_path / "recipe.yaml").write_text(
        "name: r\nmodel: builtin:tiny\nagent: {renderer: tiny}\ntasks: [{domain: sums, source: tasks.jsonl}]\n"
    )
    assert ": ok" in run_there(installed, HIDE_TRAINING % (["validate", str(tmp_path / "recipe.yaml")],))

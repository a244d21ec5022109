"""What the documentation says can be done, can be done."""

import importlib
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import matplotlib
import pytest
from conftest import BACKEND

import keras_parseval as kp

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(kp.__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
}
ROOMS = (
    *("constraints", "initializers", "regularizers", "layers", "losses"),
    *("callbacks", "attacks", "analysis", "models", "plots", "reports"),
)
PUBLIC = {
    f"{room}.{name}": getattr(importlib.import_module(f"keras_parseval.{room}"), name)
    for room in ROOMS
    for name in importlib.import_module(f"keras_parseval.{room}").__all__
}
# A title above a block of code names the one backend that the block is for.
TITLES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
BLOCK = re.compile(r'^```python(?: title="(\w+)")?\n(.*?)^```$', flags=re.DOTALL | re.MULTILINE)


def python_blocks(text):
    """The title, or an empty string, and the code of each block."""
    return BLOCK.findall(text)


def runnable(text):
    """The blocks that are for this backend, as one program."""
    blocks = python_blocks(text)
    # What is not found here would not be run, and nobody would know.
    assert text.count("```python") == len(blocks)
    assert {title for title, _ in blocks} <= {"", *TITLES.values()}
    return "\n".join(code for title, code in blocks if title in ("", TITLES[BACKEND]))


PROGRAMS = {name: path for name, path in PAGES.items() if python_blocks(path.read_text())}
DEVICES = "docs/guides/devices-and-resuming.md"
# These a newcomer runs, or they have blocks for each backend.
EVERYWHERE = ("README.md", "docs/getting-started.md", "docs/guides/your-own-loop.md")


def test_a_page_with_blocks_for_a_backend_runs_there():
    titled = {name for name, path in PROGRAMS.items() if 'python title="' in path.read_text()}
    assert titled <= {DEVICES, *EVERYWHERE}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in EVERYWHERE else pytest.mark.once)
        for name in PROGRAMS
        if name != DEVICES
    ],
)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    exec(runnable(PROGRAMS[name].read_text()), {"__name__": "page"})
    plt.close("all")


def test_the_code_of_the_page_on_devices_runs(tmp_path):
    # In a process of its own, because devices must be set up before a backend starts.
    program = tmp_path / "page.py"
    program.write_text(runnable(PROGRAMS[DEVICES].read_text()))
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "XLA_FLAGS": flags}
    process = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-3000:]


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if callable(value)])
def test_every_public_object_has_an_example_that_runs(name):
    examples = python_blocks(inspect.getdoc(PUBLIC[name]))
    assert examples, f"{name} has no example"
    for _, example in examples:
        exec(example, {"keras": keras, "kp": kp})


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_has_every_public_name_and_no_other(room):
    page = (DOCS / "api" / f"{room}.md").read_text()
    entries = re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)
    names = importlib.import_module(f"keras_parseval.{room}").__all__
    assert sorted(entries) == sorted(f"keras_parseval.{room}.{name}" for name in names)


@pytest.mark.parametrize("name", PAGES)
def test_names_on_a_page_exist(name):
    for path in re.findall(r"\bkp((?:\.\w+)+)", PAGES[name].read_text()):
        value = kp
        for attribute in path[1:].split("."):
            assert hasattr(value, attribute), f"kp{path}"
            value = getattr(value, attribute)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 900


def test_the_readme_has_two_commands_to_paste():
    commands = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
    assert [command.splitlines()[-1] for command in commands] == [
        ".venv/bin/python examples/quickstart.py",
        ".venv/bin/python -m pytest",
    ]


def test_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_benchmarks_page_has_the_figures_of_the_benchmarks():
    from benchmarks import summary

    tables = summary.summary(ROOT / "benchmarks" / "results.jsonl").split("\n\n")
    page = (DOCS / "benchmarks.md").read_text()
    assert len(tables) == 7 and all(table in page for table in tables)


def test_every_page_is_in_the_navigation():
    configuration = (ROOT / "mkdocs.yml").read_text()
    navigation = configuration[configuration.index("\nnav:") :]
    listed = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_version_is_the_one_installed():
    assert importlib.metadata.version("keras-parseval") == kp.__version__

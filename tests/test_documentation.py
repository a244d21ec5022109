"""What the documentation says can be done, can be done."""

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_parseval as kp

ROOT = Path(kp.__file__).parent.parent
PUBLIC = {
    name: value
    for name, value in vars(kp).items()
    if not name.startswith("_") and not inspect.ismodule(value)
}


def python_blocks(text):
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_object_has_an_example_that_runs(name):
    examples = python_blocks(inspect.getdoc(PUBLIC[name]))
    assert examples, f"{name} has no example"
    for example in examples:
        exec(example, {"keras": keras, "kp": kp})


def test_the_readme_runs():
    namespace = {}
    for block in python_blocks((ROOT / "README.md").read_text()):
        exec(block, namespace)


def test_the_readme_names_everything_public():
    readme = (ROOT / "README.md").read_text()
    assert [name for name in PUBLIC if f"kp.{name}" not in readme] == []


def test_the_readme_has_the_figures_of_the_benchmarks():
    from benchmarks import summary

    tables = summary.summary(ROOT / "benchmarks" / "results.jsonl").split("\n\n")
    readme = (ROOT / "README.md").read_text()
    assert len(tables) == 2 and all(table in readme for table in tables)


def test_the_version_is_the_one_installed():
    assert importlib.metadata.version("keras-parseval") == kp.__version__


def test_no_other_file_imports_a_backend_by_name():
    for path in (ROOT / "keras_parseval").rglob("*.py"):
        if path.name == "_backend.py":
            continue  # the one place for it
        allowed = {"keras", "numpy", "rich", "keras_parseval"}  # rich comes with Keras
        if path.parent.name == "plots":
            allowed |= {"matplotlib"}
        packages = {name.split(".")[0] for name in imported_modules(path)}
        assert packages - set(sys.stdlib_module_names) <= allowed, path


@pytest.mark.parametrize("folder", ["keras_parseval", "examples", "benchmarks"])
def test_nothing_private_of_keras_is_imported(folder):
    paths = list((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        private = [name for name in imported_modules(path) if name.startswith("keras.src")]
        assert private == [], path
        # Reached as an attribute, it would not be imported by name.
        assert "keras.src" not in path.read_text(), path


def imported_modules(path):
    """The modules a file imports, and those it imports names from."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_importing_the_package_loads_no_other_backend():
    program = "import keras, sys; import keras_parseval; print(*sorted(sys.modules))"
    plain = subprocess.run(
        [sys.executable, "-c", program.replace("import keras_parseval; ", "")],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    added = {name.split(".")[0] for name in ours.stdout.split()} - {
        name.split(".")[0] for name in plain.stdout.split()
    }
    assert added <= {"keras_parseval"} | sys.stdlib_module_names

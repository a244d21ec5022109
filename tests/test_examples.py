"""Every example runs, at a small size, from a directory of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BACKEND

EXAMPLES = Path(__file__).parent.parent / "examples"
# The quickstart runs in full as README's first command, and `paper.py` has a test of its own.
SCRIPTS = [
    *("constrain_your_model.py", "convert_a_model.py", "adversarial_fit.py"),
    *("certify_and_inspect.py", "beyond_images.py"),
]
FIGURES = {
    "certify_and_inspect.py": {
        f"certify-figures/{name}.png" for name in ("bounds", "dimensions", "spectra")
    },
}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough: the library is tested on all")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_example_runs_and_ends_with_its_claim(script, tmp_path):
    run = subprocess.run(
        [sys.executable, EXAMPLES / script],
        cwd=tmp_path,
        env={**os.environ, "EPOCHS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert any(character.isdigit() for character in run.stdout.splitlines()[-1])
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    assert written == FIGURES.get(script, set())


def test_the_list_of_examples_is_complete():
    readme = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in readme] == []

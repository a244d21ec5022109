"""Every example runs, at a small size, from a directory of its own, and ends with its claim."""

import importlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import BACKEND

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT))
console = importlib.import_module("examples.console")

once = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="once is enough: the library is tested on all"
)
# The quickstart runs in full as README's first command, and the paper has a test file of its own.
# What the last line says was measured.
MEASURED = {
    "constrain_your_model.py": (
        "Measured: Lipschitz bound up to the classifier {bound}, plain {plain_bound}; "
        "accuracy {share}, plain {plain_share}."
    ),
    "convert_a_model.py": (
        "Measured: accuracy at 15 dB, 20 steps: {share}, before {share_before}; "
        "clean {clean_share}, before {clean_share_before}."
    ),
    "adversarial_fit.py": (
        "Measured: accuracy at 15 dB {share}, without adversarial training {plain_share}; "
        "clean {clean_share} and {plain_clean_share}."
    ),
    "certify_and_inspect.py": "Measured: {changed} of {examples} changed under 100 steps.",
    "certified_convnet.py": (
        "Measured: certified at 0.5: {by_operators}, with tight kernels {by_kernels}."
    ),
    "evaluate_a_defence.py": (
        "Measured: with the rounding layer {seeming_share} by Auto-PGD alone, "
        "{share} by the suite; without it {bare_share}."
    ),
    "robustness_report.py": (
        "Measured: certified to {reach}, plain {plain_reach}; "
        "accuracy {share}, plain {plain_share}."
    ),
    "beyond_images.py": (
        "Measured: constant {bound}; accuracy {share}, certified "
        "{half_share} at 0.5, {one_share} at 1."
    ),
}
FIGURES = {
    "certified_convnet.py": {"convnet-figures/spectra.png"},
    "certify_and_inspect.py": {
        f"certify-figures/{name}.png" for name in ("bounds", "dimensions", "spectra")
    },
}


@once
@pytest.mark.parametrize("script", MEASURED)
def test_the_example_runs_and_ends_with_its_claim(script, tmp_path):
    # Adversarial training begins with the second epoch there.
    environment = {**os.environ, "EPOCHS": "2" if script == "adversarial_fit.py" else "1"}
    # It is for the script to silence TensorFlow.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    run = subprocess.run(
        [sys.executable, EXAMPLES / script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stderr == ""
    *_, claim, last = run.stdout.splitlines()
    assert re.fullmatch(r"Claim: .{20,}\.", claim)
    check_measured(script, last)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    assert written == FIGURES.get(script, set())


def check_measured(script, line):
    """The numbers of the line are what their names say, and bear the claim where it must hold."""
    numbers = parsed(MEASURED[script], line)
    for name, value in numbers.items():
        assert np.isfinite(value), name
        # After an epoch, and under attack, twice as much as by chance is right at the least.
        assert (0.2 < value <= 1) if "share" in name else value >= 0, name
    if script == "constrain_your_model.py":
        assert 0 < numbers["bound"] < numbers["plain_bound"]
    if script == "certify_and_inspect.py":
        assert (numbers["changed"], numbers["examples"]) == (0, 300)
    if script == "evaluate_a_defence.py":
        assert numbers["share"] < numbers["seeming_share"] - 0.1
    if script == "beyond_images.py":
        assert numbers["share"] >= numbers["half_share"] >= numbers["one_share"]


def parsed(form, line):
    """The numbers in a line of that form, by name."""
    pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[-+\\w.]+)", re.escape(form))
    match = re.fullmatch(pattern, line)
    assert match, f"{line!r} is not of the form {form!r}"
    return {name: float(value) for name, value in match.groupdict().items()}


@pytest.mark.parametrize(
    "line",
    [
        "Measured: nothing.",
        "Measured: constant 1.0; accuracy nan, certified 0.4 at 0.5, 0.3 at 1.",
        "Measured: constant 1.0; accuracy 1.4, certified 0.4 at 0.5, 0.3 at 1.",
        "Measured: constant 1.0; accuracy 0.3, certified 0.4 at 0.5, 0.3 at 1.",
        "Measured: constant 1.0; accuracy 0.6, certified 0.4 at 0.5, 0.1 at 1.",
        "Measured: constant inf; accuracy 0.6, certified 0.4 at 0.5, 0.3 at 1.",
    ],
)
def test_a_measure_that_makes_no_sense_is_noticed(line):
    check_measured(
        "beyond_images.py", "Measured: constant 1.0; accuracy 0.6, certified 0.4 at 0.5, 0.3 at 1."
    )
    with pytest.raises(AssertionError):
        check_measured("beyond_images.py", line)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress_is_a_line_that_changes_and_vanishes(stream, monkeypatch, capsys):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    shown = stream()
    monkeypatch.setattr(sys, "stderr", shown)
    options = {"epochs": 2, "verbose": 0}
    x, y = np.ones((4, 2)), np.full((4, 1), 2.0)
    for summary in (True, False):
        model.fit(x, y, callbacks=[console.Progress("it", summary=summary)], **options)
    assert re.fullmatch(
        r"Trained it in \d+ s: loss 4.000 after epoch 2 of 2\n", capsys.readouterr().out
    )
    epochs = [f"Training it: loss 4.000 after epoch {epoch} of 2" for epoch in (1, 2)]
    lines = ["Training it ...", *epochs, ""] if stream is Terminal else []
    assert shown.getvalue() == "".join(f"\r\033[K{line}" for line in 2 * lines)


def test_the_list_of_examples_is_complete():
    readme = (EXAMPLES / "README.md").read_text()
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"__init__.py"}
    parts = {f"paper/{path.name}" for path in (EXAMPLES / "paper").glob("[!_]*.py")}
    assert {*MEASURED, "quickstart.py", "paper/cli.py"} <= scripts | parts
    assert [name for name in scripts | parts if f"({name})" not in readme] == []


def test_the_links_of_the_list_lead_somewhere():
    links = re.findall(r"\]\((?!http)(.*?)\)", (EXAMPLES / "README.md").read_text())
    assert len(links) > 10
    assert [link for link in links if not (EXAMPLES / link).exists()] == []

"""The command that trains certified networks: its record, the choice of a rate, resuming."""

import importlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import BACKEND

import keras_parseval as kp

pytest.importorskip("tensorflow", reason="the data pipelines need TensorFlow on every backend")
pytestmark = pytest.mark.skipif(
    BACKEND != "torch" and not os.environ.get("KERAS_PARSEVAL_SLOW"),
    reason="once is enough, where there is nothing to compile",
)
sys.path.insert(0, str(Path(__file__).parent.parent))
data = importlib.import_module("examples.data")
cli, report, training = (
    importlib.import_module(f"examples.certified.{part}") for part in ("cli", "report", "training")
)
COMMAND = [
    *("--limit", "200", "--epochs", "2", "--batch-size", "50", "--verbose", "0"),
    *("--network", "widths=[4]", "depth=1", "units=8", "--rates", "2e-3", "2e-2", "--out"),
]
NAMES = [f"digits-operator-rate{rate}-seed0" for rate in ("0.002", "0.02")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder that a whole command leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    cli.main([*COMMAND, str(folder)])
    return folder


def lines(folder):
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def test_what_was_recorded_is_true_of_the_saved_models(undisturbed):
    dataset = data.load("digits", limit=200)
    assert [record["name"] for record in lines(undisturbed)] == NAMES
    for record in lines(undisturbed):
        model = keras.models.load_model(undisturbed / "models" / f"{record['name']}.keras")
        results = record["results"]
        for name, part in (("validation", dataset.validation), ("test", dataset.test)):
            clean, *certified = results[name]
            assert clean == pytest.approx(model.evaluate(*part, verbose=0)[1], abs=1e-6)
            radii = kp.certified_radius(model, *part, verbose=0)
            levels = np.array([36, 72, 108, 255]) / 255
            assert certified == [(radii > level).mean() for level in levels]
        assert results["bound"] == kp.lipschitz_bound(model).bound < 1.01
        assert results["images"] == 200 and results["tightened"]
        values = np.concatenate(list(kp.singular_values(model).values()))
        # The layers were tightened after the training's end.
        assert abs(values - 1).max() < 1e-3 < results["largest_at_the_end"] - 1
        assert results["largest_on_the_way"] == max(record["history"]["spectrum_max"])
        assert len(record["history"]["loss"]) == 2 and record["seconds"]["training"] > 0
    assert not list((undisturbed / "checkpoints").iterdir())


class Killed(BaseException):
    """Ends a run, as a signal would, past everything that handles errors."""


def test_a_killed_command_goes_on_to_the_same_weights(undisturbed, tmp_path, monkeypatch):
    class Killing(training.Checkpoint):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            raise Killed

    name = NAMES[1]
    command = [*COMMAND, str(tmp_path), "--rates", "2e-2"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(training, "Checkpoint", Killing)
        cli.main(command)
    assert (tmp_path / "checkpoints" / f"{name}.npz").exists()
    cli.main(command)
    ours, theirs = (
        keras.models.load_model(folder / "models" / f"{name}.keras").get_weights()
        for folder in (tmp_path, undisturbed)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_finished_is_not_done_again(undisturbed, capsys):
    before = (undisturbed / "runs.jsonl").read_text()
    cli.main([*COMMAND, str(undisturbed)])
    said = capsys.readouterr().out
    assert all(f"{name}: finished before" in said for name in NAMES)
    assert (undisturbed / "runs.jsonl").read_text() == before


def test_the_rate_is_chosen_by_validation_images(undisturbed):
    first, second = lines(undisturbed)
    first["results"] |= {"validation": [0.5, 0.4, 0, 0, 0], "test": [0.5, 0.2, 0, 0, 0]}
    second["results"] |= {"validation": [0.6, 0.3, 0, 0, 0], "test": [0.6, 0.5, 0, 0, 0]}
    title, *_, chosen, other = report.tables([first, second]).splitlines()
    assert title == "digits, 200 images, 2 epochs:"
    assert chosen.startswith("| **operator** | **0.002** | **0** | **40.0** |")
    assert other.startswith("| operator | 0.02 | 0 | 30.0 | 60.0 | 50.0 |")
    again = {**second, "config": {**first["config"], "seed": 1}}
    assert "| operator | 0.002 | 0, 1 | 35.0 | 55.0 | 35.0 |" in report.tables([first, again])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--epochs", "0"], "epochs"),
        (["--rates", "0"], "rates"),
        (["--full", "--rates", "1e-3", "2e-3"], "validation images"),
        (["--network", "depth"], "NAME=VALUE"),
        (["--network", "colour=1"], "colour"),
        (["--precision", "float33"], "float33"),
        (["--dataset", "cifar10", "--data-dir", "/nowhere"], "data directory"),
    ],
)
def test_errors_come_before_any_training(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--out", str(tmp_path)])
    assert message in capsys.readouterr().err


def test_runs_of_other_settings_are_not_mixed(undisturbed, capsys):
    with pytest.raises(SystemExit):
        cli.main([*COMMAND, str(undisturbed), "--margin", "0.1"])
    assert "differs in margin" in capsys.readouterr().err


def test_the_guide_has_the_figures_of_the_lines():
    root = Path(cli.__file__).parent.parent.parent
    tables = report.tables(report.read_runs(root / "examples" / "certified" / "results").values())
    guide = (root / "docs" / "guides" / "tight-convolutions.md").read_text()
    for table in tables.split("\n\n")[1::2]:
        assert table in guide

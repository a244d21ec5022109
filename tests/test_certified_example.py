"""The command that trains certified networks: its record, the choice of a rate, resuming."""

import importlib
import json
import os
import re
import sys
from importlib.util import find_spec
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
experiments = importlib.import_module("examples.experiments.training")
records = importlib.import_module("examples.experiments.records")
attacks, cli, experiments_of_page, networks, recipes, report, results_page, training = (
    importlib.import_module(f"examples.certified.{part}")
    for part in (
        *("attacks", "cli", "experiments", "networks", "recipes", "report", "results_page"),
        "training",
    )
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


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_killed_command_goes_on_to_the_same_weights(
    optimizer, undisturbed, tmp_path, monkeypatch
):
    class Killing(experiments.Checkpoint):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            raise Killed

    name, command = NAMES[1], [*COMMAND, str(tmp_path), "--rates", "2e-2"]
    if optimizer == "muon":
        name, command, undisturbed = (
            f"{name}-muon",
            [*command, "--optimizer", "muon"],
            tmp_path / "2",
        )
        cli.main([*command, "--out", str(undisturbed)])
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(experiments, "Checkpoint", Killing)
        cli.main(command)
    assert (tmp_path / "checkpoints" / f"{name}.npz").exists()
    cli.main(command)
    ours, theirs = (
        keras.models.load_model(folder / "models" / f"{name}.keras").get_weights()
        for folder in (tmp_path, undisturbed)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(12, 8), (3, 3, 4, 8), (2, 2, 8, 6)])
def test_muon_is_that_of_keras_on_flattened_kernels(shape, rng):
    initial, *gradients = rng.normal(size=(4, *shape)).astype("float32")
    ours = recipes.OPTIMIZERS["muon"](0.01, weight_decay=None)
    rate = 0.01 / np.prod(shape[:-2]) ** 0.5
    theirs = keras.optimizers.Muon(rate, weight_decay=None, rms_rate=None)
    found = []
    for optimizer, flat in ((ours, shape), (theirs, (-1, shape[-1]))):
        variable = keras.Variable(initial.reshape(flat))
        for gradient in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(gradient.reshape(flat))], [variable])
        found.append(keras.ops.convert_to_numpy(variable).reshape(shape))
    np.testing.assert_allclose(*found, atol=1e-5)
    assert abs(found[0] - initial).max() > 1e-3


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
        cli.main([*COMMAND, str(undisturbed), "--temperature", "1"])
    assert "differs in temperature" in capsys.readouterr().err


def test_the_guide_has_the_figures_of_the_lines():
    root = Path(cli.__file__).parent.parent.parent
    tables = report.tables(records.read_runs(root / "examples" / "certified" / "results").values())
    guide = (root / "docs" / "guides" / "tight-convolutions.md").read_text()
    for table in tables.split("\n\n")[1::2]:
        assert table in guide


def small(variant, **changes):
    """A run of a small network on the digits."""
    kind = recipes.VARIANTS[variant]
    settings = {
        **{"dataset": "digits", "variant": variant, "rate": 1e-2, "seed": 0, "epochs": 2},
        **{"network": {"widths": [4], "depth": 1, "units": 8}, "minutes": None, "batch_size": 50},
        **{"margin": kind.margin, "temperature": kind.temperature},
        **{"weight_decay": kind.weight_decay, "optimizer": "adam", "limit": 100, "full": False},
        **{"precision": "float32", "backend": keras.backend.backend()},
    }
    return recipes.Run(**settings | changes)


def unless_absent(variant, package):
    missing = find_spec(package) is None
    return pytest.param(variant, marks=pytest.mark.skipif(missing, reason=f"{package} is absent"))


OF_OTHERS = [unless_absent("orthogonium", "orthogonium"), unless_absent("torchlip", "deel")]
CONTESTANTS = ["operator", "kernel", "paper", "plain", "adversarial", *OF_OTHERS]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("variant", CONTESTANTS)
def test_every_contestant_learns_and_is_finished_in_float32(variant, policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        run, dataset = small(variant, precision=policy, epochs=6), data.load("digits", limit=300)
        model = training.compile_model(run, dataset)
        history = training.train(run, dataset, model, tmp_path / "checkpoint.npz", 0).history
        finished = networks.finished(model)
    finally:
        keras.config.set_dtype_policy("float32")
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert all(layer.compute_dtype == "float32" for layer in finished.layers[1:])
    x = dataset.test[0]
    tolerance = 1e-5 if policy == "float32" else 0.05
    ours, theirs = finished.predict(x, verbose=0), model.predict(x, verbose=0)
    np.testing.assert_allclose(ours, theirs, atol=tolerance * abs(ours).max())
    results = training.measure(run, dataset, finished, history)
    bound = results["bound"]
    assert (bound < 1.06) == (variant not in ("plain", "adversarial")), bound
    assert results["test"][0] >= results["test"][1]


@pytest.mark.parametrize("variant", ["plain", "adversarial", *OF_OTHERS])
def test_every_contestant_resumes_to_the_same_weights(variant, tmp_path, monkeypatch):
    class Killing(experiments.Checkpoint):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            raise Killed

    run, dataset = small(variant), data.load("digits", limit=100)
    path = tmp_path / "checkpoint.npz"
    models = [training.compile_model(run, dataset) for _ in range(3)]
    training.train(run, dataset, models[0], tmp_path / "whole.npz", 0)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(experiments, "Checkpoint", Killing)
        training.train(run, dataset, models[1], path, 0)
    training.train(run, dataset, models[2], path, 0)
    # Each look at a weight of orthogonium goes a step further towards its norm, and `fit` begins
    # with one.
    tolerance = 1e-5 if variant == "orthogonium" else 0.0
    whole, resumed = (networks.finished(models[index]).get_weights() for index in (0, 2))
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def test_minutes_become_epochs_that_a_checkpoint_keeps(tmp_path, monkeypatch):
    run, dataset = small("operator", minutes=1.0), data.load("digits", limit=100)
    # 100 images are 2 steps; at 5 seconds each, 6 epochs take a minute.
    monkeypatch.setattr(training.Clock, "fastest", lambda clock: 5.0 * (len(clock.times) == 32))
    chosen = cli.with_epochs(run, dataset, tmp_path / "none.npz")
    assert chosen.epochs == 6 and chosen.minutes == 1.0
    short = cli.with_epochs(small("operator", minutes=0.01), dataset, tmp_path / "none.npz")
    assert short.epochs == 1
    model = training.compile_model(short, dataset)
    training.train(short, dataset, model, tmp_path / "begun.npz", 0)
    assert cli.with_epochs(run, dataset, tmp_path / "begun.npz").epochs == 1
    assert cli.with_epochs(small("operator"), dataset, tmp_path / "begun.npz").epochs == 2


def test_the_fastest_window_tells_the_speed():
    clock = training.Clock()
    clock.times = [0, 9, 18, 20, 22, 24, 26, 35]
    assert clock.fastest() == 2


def test_attacks_lie_between_clean_and_certified_and_are_recorded_once(undisturbed, capsys):
    command = ["--out", str(undisturbed), "--names", NAMES[1], "--images", "40"]
    command += ["--steps", "10", "--queries", "20"]
    attacks.main(command)
    (line,) = records.read(undisturbed / "attacks.jsonl")
    assert line["name"] == NAMES[1] and line["images"] == 40
    model = keras.models.load_model(undisturbed / "models" / f"{NAMES[1]}.keras")
    x, y = (array[:40] for array in data.load("digits", limit=200).test)
    assert line["clean"] == pytest.approx(model.evaluate(x, y, verbose=0)[1], abs=1e-6)
    radii = kp.certified_radius(model, x, y, verbose=0)
    assert line["suite"]["levels"] == [36 / 255, 108 / 255]
    assert line["alone"]["levels"] == [72 / 255, 255 / 255]
    assert "Square" in line["suite"]["attack"] and "Square" not in line["alone"]["attack"]
    for part in (line["suite"], line["alone"]):
        for level, attacked, certified, (low, high) in zip(
            part["levels"], part["accuracies"], part["certified"], part["intervals"], strict=True
        ):
            assert certified == (radii > level).mean()
            assert certified <= attacked <= line["clean"] and low <= attacked <= high
    for each in line["inside"]:
        assert each["certified"] == 40 and each["flipped"] == 0 < each["median_radius"]
    attacks.main(command)
    assert "finished before" in capsys.readouterr().out
    assert len(records.read(undisturbed / "attacks.jsonl")) == 1


def test_decisions_that_change_inside_are_counted(undisturbed, monkeypatch):
    model = keras.models.load_model(undisturbed / "models" / f"{NAMES[1]}.keras")
    x = data.load("digits", limit=200).test[0][:40]
    radii = kp.certified_radius(model, x, verbose=0)
    monkeypatch.setattr(kp, "certified_radius", lambda *args, **options: 50 * radii)
    assert attacks.inside(model, x, 2, 10)["flipped"] > 0


def test_only_finished_runs_are_attacked(undisturbed, capsys):
    with pytest.raises(SystemExit):
        attacks.main(["--out", str(undisturbed), "--names", "digits-unheard-of"])
    assert "digits-unheard-of" in capsys.readouterr().err


ROOT = Path(__file__).parent.parent
RESULTS, DOCS = ROOT / "examples" / "certified" / "results", ROOT / "docs"


def test_the_page_is_made_of_the_lines_and_shows_every_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(results_page, "PAGE", tmp_path / "certified.md")
    results_page.main([])
    page = (DOCS / "certified.md").read_text()
    assert (tmp_path / "certified.md").read_text() == page
    shown = {Path(path).name for path in re.findall(r"\]\((figures/certified/.*?)\)", page)}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == shown
    assert {path.name for path in (DOCS / "figures" / "certified").glob("*")} == shown


def test_no_measured_figure_of_the_page_is_written_by_hand():
    text = (RESULTS / "text.md").read_text()
    text = re.sub(r"```.*?```|`.*?`|\{\{.*?\}\}", "", text, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", text) == []


def page_of(folder, text, copied_to, monkeypatch):
    """The page that is made of a text and the lines of experiments in a folder."""
    for name, path in (("FOLDER", "lines"), ("FIGURES", "figures"), ("PAGE", "page.md")):
        monkeypatch.setattr(results_page, name, copied_to / path)
    (copied_to / "lines").mkdir(parents=True)
    (copied_to / "lines" / "text.md").write_text(text)
    results_page.main([str(folder)])
    return (copied_to / "page.md").read_text()


def test_a_page_without_lines_says_what_is_missing(tmp_path, monkeypatch):
    page = page_of(tmp_path, (RESULTS / "text.md").read_text(), tmp_path / "new", monkeypatch)
    for name in experiments_of_page.EXPERIMENTS:
        assert f"Not run yet: {name}.*" in page
    assert "Not run yet: operator of comparison, kernel of comparison" in page
    assert "figures/certified" not in page and "ours:" not in page


def made_up(undisturbed, variant, rate, validation, test):
    (record, _) = lines(undisturbed)
    config = record["config"] | {"variant": variant, "rate": rate}
    results = record["results"] | {
        "validation": [0.5, validation, 0, 0, 0],
        "test": [0.6, test, 0.2, 0.1, 0],
    }
    name = f"{variant}-{rate}"
    return {**record, "name": name, "config": config, "results": results}


def test_the_page_tells_the_lead_at_the_rates_that_validation_images_chose(
    undisturbed, tmp_path, monkeypatch
):
    for args in (
        *(("operator", 2e-3, 0.40, 0.42), ("operator", 5e-3, 0.39, 0.50)),
        *(("kernel", 2e-3, 0.30, 0.31), ("kernel", 5e-3, 0.35, 0.30)),
        *(("paper", 2e-3, 0.10, 0.25), ("paper", 5e-3, 0.05, 0.35)),
    ):
        records.add_run(tmp_path / "out" / "comparison", made_up(undisturbed, *args))
    # One margin alone, and a run that was attacked.
    records.add_run(tmp_path / "out" / "margins", made_up(undisturbed, "operator", 2e-3, 0.4, 0.42))
    records.add_run(tmp_path / "out" / "long", made_up(undisturbed, "operator", 2e-3, 0.4, 0.42))
    part = {"levels": [0.1, 0.3], "certified": [0.5, 0.25], "accuracies": [0.75, 0.5]}
    part |= {"intervals": [[0.7, 0.8], [0.4, 0.6]], "attack": "suite", "warnings": []}
    far = {"norm": 2, "attacks": "PGD", "certified": 40, "flipped": 0, "median_radius": 0.25}
    line = {"name": "attacked-one", "images": 40, "clean": 0.9, "suite": part}
    line |= {"alone": {**part, "levels": [0.2, 1.0], "attack": "Auto-PGD"}, "inside": [far]}
    records.append(tmp_path / "out" / "long" / "attacks.jsonl", line)
    text = (RESULTS / "text.md").read_text()
    page = page_of(tmp_path / "out", text, tmp_path / "new", monkeypatch)
    assert "certify 42.0% at 36/255 (60.0% clean): +12.0 points" in page
    assert "+17.0 points against flattened frames with the paper's scale" in page
    assert "**ours: operator, rate 0.002** | **60.0** | **42.0** | 2 epochs" in page
    assert "| attacked-one | 40 | 0.3 | 25.0 | 50.0 | 40.0 to 60.0 | suite |" in page
    assert "| attacked-one | 2 | PGD | 40 | 0.25 | 0 |" in page
    drawn = {path.stem for path in (tmp_path / "new" / "figures").iterdir()}
    kinds = {"comparison-time", "comparison-spectra", "long-time", "long-spectra", "long-band"}
    assert drawn == kinds | {"margins"}


def test_each_experiment_can_be_planned():
    for name in experiments_of_page.EXPERIMENTS:
        options = cli.make_parser().parse_args(experiments_of_page.command(name, "/x").split())
        assert options.out == f"/x/{name}"
        options.tuned = None
        assert cli.plan(options)


def test_tuned_rates_are_those_that_validation_images_chose(undisturbed, tmp_path):
    records.add_run(tmp_path, made_up(undisturbed, "operator", 2e-3, 0.3, 0.42))
    records.add_run(tmp_path, made_up(undisturbed, "operator", 5e-3, 0.4, 0.31))
    # Where nothing is certified, clean accuracy decides.
    for rate, clean in ((1e-3, 0.7), (2e-3, 0.6)):
        plain = made_up(undisturbed, "plain", rate, 0.0, 0.0)
        plain["results"]["validation"][0] = clean
        plain["config"] |= {"margin": 0.0, "weight_decay": 0.05}
        records.add_run(tmp_path, plain)
    command = ["--variants", "operator", "plain", "--tuned", str(tmp_path), "--full"]
    runs = cli.plan(cli.make_parser().parse_args(command))
    assert [run.rate for run in runs] == [5e-3, 1e-3]
    with pytest.raises(ValueError, match="runs of kernel"):
        cli.plan(cli.make_parser().parse_args([*command, "--variants", "kernel"]))


def test_adversarial_training_sees_attacked_images_alone(tmp_path):
    dataset, losses = data.load("digits", limit=100), {}
    for variant in ("plain", "adversarial"):
        run = small(variant, epochs=1)
        model = training.compile_model(run, dataset)
        progress = training.train(run, dataset, model, tmp_path / f"{variant}.npz", 0)
        losses[variant] = progress.history["loss"][0]
    assert losses["adversarial"] > 1.02 * losses["plain"]
    (attack,) = recipes.callbacks(small("adversarial"))
    assert (attack.ratio, attack.attack.norm, attack.attack.labels) == (1.0, 2, "true")

"""The paper's experiments as one command: plans, records, resuming, errors."""

import dataclasses
import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import BACKEND, to_numpy

import keras_parseval as kp

# It takes a minute, and nothing in it depends on the backend that its parts are not tested for.
pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow" and not os.environ.get("KERAS_PARSEVAL_SLOW"),
    reason="KERAS_PARSEVAL_SLOW is not set",
)

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
data = importlib.import_module("examples.data")
kept = importlib.import_module("examples.experiments.records")
cli, recipes, report, suspects, training, tuning = (
    importlib.import_module(f"examples.paper.{part}")
    for part in ("cli", "recipes", "report", "suspects", "training", "tuning")
)

# Where a command is killed, steps are small, so that it can be in the middle of an epoch.
BATCH_SIZE = "8" if BACKEND == "tensorflow" else "50"
COMMAND = [
    *(sys.executable, "-u", "-m", "examples.paper", "--units", "16", "--hidden", "2"),
    *("--variants", "sgd-wd", "parseval", "--adversarial", "yes", "--epochs", "2", "--drops", "1"),
    *("--batch-size", BATCH_SIZE, "--limit", "400", "--verbose", "2", "--out"),
]
RUNS = ["digits-fc-sgd-wd-da-seed0", "digits-fc-parseval-da-seed0"]
# As in a fresh clone: from its root.
PLACE = {"cwd": ROOT, "env": {**os.environ, "KERAS_BACKEND": BACKEND}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder that a whole command leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([*COMMAND, folder], **PLACE, check=True, capture_output=True)
    return folder


def test_a_command_leaves_records_models_table_and_figures(undisturbed):
    records = [json.loads(line) for line in (undisturbed / "runs.jsonl").read_text().splitlines()]
    assert [record["name"] for record in records] == RUNS
    for record in records:
        assert record["config"]["seed"] == 0 and record["versions"]["keras"] == keras.__version__
        assert record["seconds"]["training"] > 0 and record["machine"]["cores"] >= 1
        assert [len(values) for values in record["history"].values()] == [2] * 5
        # The command's drop after the first epoch, by the paper's factor.
        np.testing.assert_allclose(record["history"]["learning_rate"], [0.1, 0.05])
    table = (undisturbed / "table.md").read_text()
    for label in ("sgd-wd-da", "parseval-da"):
        assert table.count(f"| {label} |") >= 3
    figures = sorted((undisturbed / "figures").iterdir())
    kinds = {path.stem.removeprefix("digits-fc-") for path in figures}
    assert kinds >= {
        *("snr-fgsm", "snr-iterated", "singular-values", "covariance-dimension"),
        *("learning-val_loss", "adversarial-sgd-wd-da", "adversarial-parseval-da"),
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures)
    assert not list((undisturbed / "checkpoints").iterdir())


def test_what_was_recorded_is_true_of_the_saved_models(undisturbed):
    dataset = data.load("digits", limit=400)
    for record in kept.read_runs(undisturbed).values():
        model = keras.models.load_model(undisturbed / "models" / f"{record['name']}.keras")
        results = record["results"]
        _, accuracy = model.evaluate(*dataset.test, verbose=0)
        assert results["fgsm"]["clean"] == pytest.approx(accuracy, abs=1e-6)
        assert results["lipschitz_bound"] == pytest.approx(kp.lipschitz_bound(model).bound)
        spectra = [
            np.linalg.svd(to_numpy(model.get_layer(f"hidden{index}").kernel), compute_uv=False)
            for index in (1, 2)
        ]
        found = results["singular_values"]
        extremes = min(map(np.min, spectra)), max(map(np.max, spectra))
        assert (found["smallest"], found["largest"]) == pytest.approx(extremes, rel=1e-4)
        near = [np.mean(abs(values - 1) <= 0.1) for values in spectra]
        assert list(found["near_target"].values()) == near
        classifier = np.linalg.norm(to_numpy(model.get_layer("logits").kernel), 2)
        assert results["classifier_norm"] == pytest.approx(classifier, rel=1e-4)
        levels = [*results["iterated"]["accuracies"]]
        assert results["iterated"]["levels"] == [50, 45, 40, 33, 25, 20, 15]
        assert results["fgsm"]["levels"] == [50, 45, 40, 33]
        assert levels[-1] <= levels[0] <= results["iterated"]["clean"]


def kill_in_the_second_epoch(command, name):
    """Start a command, and kill it when it says that the run of that name is in its last epoch."""
    with subprocess.Popen(command, **PLACE, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(300, process.kill)
        watchdog.start()
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] == "Epoch 2/2" and f"[2/2] {name}" in said:
                process.send_signal(signal.SIGKILL)
                break
        watchdog.cancel()
        assert said[-1:] == ["Epoch 2/2"], f"it ended before it could be killed: {said[-5:]}"
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(BACKEND != "tensorflow", reason="to the bit, only TensorFlow is promised to be")
def test_a_killed_command_goes_on_to_the_same_table(undisturbed, tmp_path):
    kill_in_the_second_epoch([*COMMAND, tmp_path], RUNS[1])
    assert (tmp_path / "checkpoints" / f"{RUNS[1]}.npz").exists()
    assert list(kept.read_runs(tmp_path)) == RUNS[:1]
    done = json.loads((tmp_path / "runs.jsonl").read_text())
    result = subprocess.run(
        [*COMMAND, tmp_path], **PLACE, check=True, capture_output=True, text=True
    )
    assert f"{RUNS[0]}: finished before" in result.stdout
    assert "Epoch 1/2" not in result.stdout and "Epoch 2/2" in result.stdout
    assert (tmp_path / "table.md").read_text() == (undisturbed / "table.md").read_text()
    records, expected = (kept.read_runs(path) for path in (tmp_path, undisturbed))
    assert records[RUNS[0]] == done
    for name in RUNS:
        for key in ("config", "history", "results"):
            assert records[name][key] == expected[name][key]


def small_run(**changes):
    """A run whose training is short."""
    builder, schedule = recipes.recipe("digits", "fc")
    schedule |= {"epochs": 3, "batch_size": 32, "drops": [2]}
    run = recipes.Run(
        *("digits", "fc", "parseval", True, 1, builder, schedule, 100, False, BACKEND)
    )
    return dataclasses.replace(run, **changes)


def random_model(run):
    """A network with everything that a training can have state in."""
    keras.utils.set_random_seed(run.seed)
    layers = [
        keras.layers.Flatten(),
        keras.layers.Dense(8, kernel_constraint=kp.ParsevalTightFrame(0.1, rows=0.5)),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    return model


class Interrupt(Exception):
    pass


class Interruption(keras.callbacks.Callback):
    """Ends the training in the middle of an epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 2):
            raise Interrupt


def test_a_resumed_training_repeats_dropout_order_and_attacks(tmp_path, monkeypatch):
    """On every backend, to rounding."""
    run, dataset = small_run(), data.load("digits", limit=100)
    whole = random_model(run)
    history = training.train(run, dataset, whole, tmp_path / "whole.npz", 0).history

    broken, fit = random_model(run), keras.Sequential.fit

    def interrupted_fit(self, *args, callbacks, **options):
        return fit(self, *args, callbacks=[*callbacks, Interruption()], **options)

    monkeypatch.setattr(keras.Sequential, "fit", interrupted_fit)
    with pytest.raises(Interrupt):
        training.train(run, dataset, broken, tmp_path / "broken.npz", 0)
    monkeypatch.undo()

    resumed = random_model(run)
    progress = training.train(run, dataset, resumed, tmp_path / "broken.npz", 0)
    again, times = progress.history, (progress.seconds, progress.processor_seconds)
    assert [len(values) for values in (*again.values(), *times)] == [3] * (len(again) + 2)
    for key, values in history.items():
        np.testing.assert_allclose(again[key], values, rtol=1e-4, err_msg=key)
    state = zip(
        whole.variables + whole.optimizer.variables, resumed.variables + resumed.optimizer.variables
    )
    for one, other in state:
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=1e-4, atol=1e-6)
    assert any("seed" in variable.path for variable in whole.variables)


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "folder" / "file.txt"

    def fail(unfinished):
        unfinished.write_text("half")
        raise Interrupt

    with pytest.raises(Interrupt):
        kept.write_atomically(path, fail)
    assert not path.exists()
    kept.write_atomically(path, lambda unfinished: unfinished.write_text("whole"))
    assert path.read_text() == "whole"


def plan(*arguments):
    return cli.plan(cli.make_parser().parse_args(arguments))


@pytest.mark.parametrize(
    "dataset, rates",
    [
        ("cifar10", {0: 0.1, 59: 0.1, 60: 0.02, 120: 0.004, 160: 0.0008, 199: 0.0008}),
        ("svhn", {0: 0.01, 79: 0.01, 80: 0.001, 120: 0.0001, 159: 0.0001}),
        ("mnist", {0: 0.1, 9: 0.1, 10: 0.05, 20: 0.025, 49: 0.1 / 16}),
    ],
)
def test_the_papers_recipe_is_the_default(dataset, rates):
    run = plan("--dataset", dataset)[-1]
    assert run.training["epochs"] == max(rates) + 1
    assert run.training["batch_size"] == (100 if dataset == "mnist" else 128)
    for epoch, rate in rates.items():
        assert recipes.learning_rate(run, epoch) == pytest.approx(rate)
    builder = run.builder
    if dataset == "mnist":
        assert (builder["hidden"], builder["units"], builder["pad_to"]) == (4, 2048, 32)
    else:
        expected = {"cifar10": (28, 10, 0.3, 3e-4), "svhn": (16, 4, 0.4, 1e-4)}[dataset]
        names = ("depth", "width", "dropout", "beta")
        assert tuple(builder[name] for name in names) == expected


@pytest.mark.parametrize("dataset, builder", recipes.RECIPES)
def test_every_recipe_names_arguments_of_its_builder(dataset, builder):
    network, schedule = recipes.RECIPES[dataset, builder]
    parameters = inspect.signature(getattr(kp.models, builder)).parameters
    # The data tells the rest, and a recipe must not contradict it.
    assert network.keys() <= parameters.keys() - {"input_shape", "classes", "mean", "std"}
    assert schedule.keys() == {
        *("epochs", "batch_size", "learning_rate", "momentum", "drops", "drop_factor")
    }
    assert all(0 < drop < schedule["epochs"] for drop in schedule["drops"])


def test_recipes_build_for_the_shape_of_their_data():
    def build(name, shape, *arguments):
        run = plan("--dataset", name, "--adversarial", "no", *arguments)[0]
        images, channels = np.zeros((1, *shape), "float32"), shape[-1]
        part = images, np.zeros(1, "int32")
        dataset = data.Dataset(name, part, None, part, (0.5,) * channels, (0.25,) * channels)
        return recipes.build(run, dataset)

    wide = build("cifar100", (32, 32, 3), "--model", "wrn-10-1")
    assert wide.input_shape == (None, 32, 32, 3) and wide.output_shape == (None, 100)
    flat = build("mnist", (28, 28, 1), "--units", "8")
    assert flat.get_layer("flatten").output.shape == (None, 1024)
    assert flat.output_shape == (None, 10)


def test_the_variants_are_the_papers():
    labels = [run.label for run in plan("--dataset", "cifar10")]
    plain = ["vanilla", "parseval-oc", "parseval"]
    assert labels == plain + [f"{label}-da" for label in plain]
    assert [run.label for run in plan("--dataset", "svhn")] == plain
    runs = {run.variant: run.builder for run in plan("--dataset", "mnist", "--adversarial", "no")}
    assert runs["sgd"]["weight_decay"] == 0 and "weight_decay" not in runs["sgd-wd"]
    assert runs["parseval"]["rows"] == 0.3 and "unbiased" not in runs["parseval"]
    assert runs["parseval-unbiased-10%"]["rows"] == 0.1
    assert runs["parseval-unbiased-10%"]["unbiased"] is True


def made_record(seed, accuracies, variant="parseval", adversarial=False):
    run = dataclasses.replace(
        plan("--dataset", "cifar10")[0], variant=variant, adversarial=adversarial, seed=seed
    )
    clean, *others = accuracies
    attacked = {"clean": clean, "measure": "snr", "levels": [50, 45, 40, 33]}
    attacked |= {"accuracies": others, "attack": "FGSM", "examples": 100}
    results = {"fgsm": attacked, "iterated": attacked, "certified": attacked}
    spectrum = {"smallest": 0.5, "largest": 2.0, "near_target": {"conv": 0.75}}
    results |= {"singular_values": spectrum, "tightness": {"conv": 0.25}}
    results |= {"lipschitz_bound": 4.0, "classifier_norm": 1.5}
    return {"name": run.name, "config": run.to_dict(), "results": results, "history": {}}


def test_the_table_has_our_mean_beside_the_papers_number(tmp_path):
    kept.add_run(tmp_path, made_record(0, [0.9, 0.8, 0.7, 0.6, 0.5], adversarial=True))
    kept.add_run(tmp_path, made_record(1, [0.94, 0.8, 0.7, 0.6, 0.5]))
    kept.add_run(tmp_path, made_record(0, [0.90, 0.8, 0.7, 0.6, 0.5]))
    report.write_table(tmp_path)
    lines = (tmp_path / "table.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| pars" in line]
    assert rows[0][0] == "parseval" and rows[1][0] == "parseval-da"
    deviation = 100 * np.std([0.94, 0.9], ddof=1)
    assert rows[0][1] == f"92.00 ± {deviation:.2f} (96.28)"
    assert rows[0][5] == "50.00 ± 0.00 (69.10)"
    assert rows[1][1:] == [
        *("90.00 (96.08)", "80.00 (92.51)", "70.00 (90.05)", "60.00 (86.89)", "50.00 (84.53)")
    ]


def test_runs_of_other_settings_do_not_share_a_folder(tmp_path):
    first, second = small_run(), small_run(limit=200)
    kept.add_run(tmp_path, {"name": first.name, "config": first.to_dict()})
    cli.check_folder(tmp_path, [first])
    with pytest.raises(ValueError, match=r"another `--out`.*limit=200, where .* has 100"):
        cli.check_folder(tmp_path, [second])
    with pytest.raises(ValueError, match=r"another `--out`.*limit=200"):
        cli.check_folder(tmp_path, [dataclasses.replace(second, seed=9)])


@pytest.mark.parametrize("model", ["fc", "wrn-10-1"])
def test_no_variant_has_more_settings_than_another(model):
    variants = list(recipes.variants_of(model))
    runs = plan("--model", model, "--adversarial", "no", "--variants", *variants)
    counts = [len(tuning.settings_of(run)) for run in runs]
    assert len(counts) == len(variants) and len(set(counts)) == 1
    for run in runs:
        for setting in tuning.settings_of(run):
            keras_model = recipes.build(
                tuning.with_setting(run, setting), data.load("digits", limit=10)
            )
            assert keras_model.count_params() > 0


def test_the_best_setting_on_the_validation_images_is_used(tmp_path, monkeypatch):
    small = ["--units", "32", "--limit", "400", "--epochs", "8", "--adversarial", "no"]
    small += ["--variants", "sgd-wd", "--attacked", "50"]
    settings = [{"learning_rate": 0.1, "weight_decay": 1e-3}, {"learning_rate": 1e-6}]
    monkeypatch.setattr(tuning, "settings_of", lambda run: settings)
    folder, tuned = tmp_path / "tuning", tmp_path / "tuning" / "tuning.jsonl"
    for _ in range(2):  # The second finds everything done.
        cli.main([*small, "--tune", "--verbose", "0", "--out", str(folder)])
    records = kept.read(tuned)
    assert [record["setting"] for record in records] == settings
    for record in records:
        validation = record["validation"]
        assert validation["examples"] == 50
        assert record["score"] == (validation["clean"] + validation["accuracies"][0]) / 2
    assert records[0]["score"] > records[1]["score"]
    (run,) = plan(*small, "--tuned", str(tuned))
    assert run.training["learning_rate"] == 0.1 and run.builder["weight_decay"] == 1e-3
    (run,) = plan(*small, "--tuned", str(tuned), "--rate-scale", "0.5")
    assert run.training["learning_rate"] == 0.05 and run.builder["weight_decay"] == 1e-3
    tuned.write_text(tuned.read_text().splitlines()[0] + "\n")
    with pytest.raises(ValueError, match=r"All 2 settings of sgd-wd.*Received: 1 in"):
        plan(*small, "--tuned", str(tuned))


def test_residual_networks_are_tuned_without_attack(tmp_path, monkeypatch):
    settings = [{"learning_rate": 0.3}, {"learning_rate": 0.4}]
    monkeypatch.setattr(tuning, "settings_of", lambda run: settings)
    monkeypatch.setattr(
        tuning,
        "try_out",
        lambda run, *_: ({"config": run.to_dict(), "score": run.training["learning_rate"]}, None),
    )
    small = ["--model", "wrn-10-1", "--variants", "vanilla", "--limit", "10"]
    cli.main([*small, "--tune", "--out", str(tmp_path)])
    tuned = tmp_path / "tuning.jsonl"
    assert [each["config"]["adversarial"] for each in kept.read(tuned)] == [False, False]
    runs = plan(*small, "--tuned", str(tuned))
    assert [run.adversarial for run in runs] == [False, True]
    assert [run.training["learning_rate"] for run in runs] == [0.4, 0.4]


def test_suspects_are_tried_from_the_best_setting_on(tmp_path, monkeypatch):
    small = ["--units", "16", "--limit", "200", "--epochs", "1", "--adversarial", "no"]
    small += ["--variants", "sgd-wd", "--attacked", "20", "--verbose", "0", "--out", str(tmp_path)]
    setting = {"learning_rate": 0.1, "weight_decay": 1e-3}
    monkeypatch.setattr(tuning, "settings_of", lambda run: [setting])
    names = ["classifier held at 1", "started on a frame", "twice the learning rate"]
    chosen = {name: suspects.FULLY_CONNECTED[name] for name in names}
    monkeypatch.setattr(suspects, "FULLY_CONNECTED", chosen)
    cli.main([*small, "--tune"])
    for _ in range(2):  # The second finds everything done.
        cli.main([*small, "--suspects", "--tuned", str(tmp_path / "tuning.jsonl")])
    tried = kept.read(tmp_path / "suspects.jsonl")
    assert [each["suspect"] for each in tried] == names[1:]
    assert [each["config"]["training"]["learning_rate"] for each in tried] == [0.1, 0.2]
    assert all(each["config"]["builder"]["weight_decay"] == 1e-3 for each in tried)
    assert all(each["validation"]["examples"] == 20 for each in tried)
    assert all(each["covariance_dimension"]["features"] == [16] * 4 for each in tried)
    assert all(len(each["singular_values"]["near_target"]) == 4 for each in tried)


SUSPECT_RUNS = {
    "fc": ["--weight-decay", "1e-3"],
    "wrn-10-1": ["--beta", "0.1"],
}


@pytest.mark.parametrize(
    "model, name",
    [
        *(("fc", name) for name in suspects.FULLY_CONNECTED),
        *(("wrn-10-1", name) for name in suspects.WIDE_RESNET),
    ],
)
def test_a_suspect_changes_one_thing(model, name):
    options = ["--model", model, "--adversarial", "no", *SUSPECT_RUNS[model]]
    (run,) = plan(*options, "--variants", "parseval")
    suspect = (suspects.FULLY_CONNECTED | suspects.WIDE_RESNET)[name]
    new, old = suspect.applied_to(run).to_dict(), run.to_dict()
    changed = []
    for part in ("builder", "training"):
        ours, before = new.pop(part), old.pop(part)
        changed += [key for key in ours if ours[key] != before.get(key, "default")]
    assert new == old
    default = suspects.Suspect
    if suspect.change is not default.change or suspect.finish is not default.finish:
        changed.append("model")
    assert (changed == []) == (name == "nothing")
    # The pixels are normalised by two numbers, the drops go with the epochs, and one suspect is
    # the follow-up of another.
    assert len(changed) <= 1 or changed in (["mean", "std"], ["epochs", "drops"], ["beta", "model"])


def test_suspects_are_tried_on_the_variants_that_they_fit():
    runs = plan("--model", "wrn-10-1", "--adversarial", "no")
    found = {run.variant: list(suspects.suspects_of(run)) for run in runs}
    assert found["parseval"] == list(suspects.WIDE_RESNET)
    assert found["parseval-oc"] == found["parseval"][:-1]
    assert "the paper's beta" not in found["vanilla"] and "nothing" in found["vanilla"]


def test_convex_sums_are_held():
    (run,) = plan("--model", "wrn-10-1", "--adversarial", "no", "--variants", "parseval")
    dataset = data.load("digits", limit=20)
    model = training.compile_model(run, dataset)
    before = model.get_layer("conv").kernel.numpy()
    suspects.WIDE_RESNET["convex sums held at a half"].change(model)
    model.fit(*dataset.train_pixels(), batch_size=20, verbose=0)
    sums = [layer for layer in model.layers if isinstance(layer, kp.ConvexAdd)]
    assert all(np.allclose(layer.coefficients, 0.5, atol=0) for layer in sums) and len(sums) == 3
    assert np.abs(model.get_layer("conv").kernel.numpy() - before).max() > 0


def test_settled_statistics_are_those_without_dropout():
    dataset = data.load("digits", limit=150)
    (run,) = plan("--model", "wrn-10-1", "--variants", "vanilla", "--adversarial", "no")
    model = training.compile_model(run, dataset)
    start = model.get_weights()
    normalization = model.get_layer("group2_block1_second_normalization")
    x, _ = dataset.train_pixels()
    for batch in (x[:128], x[128:]):
        model(batch, training=True)
    with_dropout = normalization.moving_variance.numpy()
    model.set_weights(start)
    suspects.settle_statistics(model, dataset)
    assert (with_dropout > 1.01 * normalization.moving_variance.numpy()).all()
    np.testing.assert_array_equal(model.get_layer("conv").kernel.numpy(), start[0])


def test_suspects_change_what_they_say():
    dataset = data.load("digits", limit=10)
    small = ["--adversarial", "no", "--units", "64", "--weight-decay", "1e-3"]
    vanilla, parseval = plan(*small, "--variants", "sgd-wd", "parseval")

    def changed(run, name):
        suspect = suspects.FULLY_CONNECTED[name]
        model = training.compile_model(suspect.applied_to(run), dataset)
        suspect.change(model)
        return model, kp.singular_values(model)

    model, values = changed(vanilla, "started on a frame")
    assert all(np.allclose(values[f"hidden{layer}"], 1, atol=1e-4) for layer in (1, 2, 3, 4))
    second, third = (model.get_layer(f"hidden{layer}").kernel.numpy() for layer in (2, 3))
    assert np.abs(second - third).max() > 0.1
    assert model.get_layer("hidden1").kernel.constraint is None
    model, values = changed(parseval, "not started on a frame")
    assert all(np.ptp(values[f"hidden{layer}"]) > 1 for layer in (1, 2, 3, 4))
    assert model.get_layer("hidden1").kernel.constraint is not None
    model, values = changed(parseval, "classifier held at 3")
    assert np.allclose(values["logits"], 3, atol=1e-4)
    assert model.get_layer("logits").kernel.constraint.scale == 3 and model.losses == []
    model, _ = changed(parseval, "pixels not normalised")
    normalise = model.get_layer("normalise")
    assert np.allclose(normalise(dataset.test[0]), dataset.test[0], atol=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--dataset", "imagenet"], "invalid choice: 'imagenet'"),
        (["--model", "lenet"], "The model must be fc, or wrn-D-W.*Received: 'lenet'"),
        (["--model", "wrn-11-1"], "`depth` must be.*10 is the nearest. Received: depth=11"),
        (["--variants", "parseval", "magic"], "must be among sgd, .*Received: 'magic'"),
        (["--limit", "5000"], "between 1 and the 1197 training images.*Received: 5000"),
        (["--epochs", "0"], "`epochs` must be a positive integer. Received: epochs=0"),
        (["--learning-rate", "-1"], "`learning_rate` must be a positive number"),
        (["--seeds", "-1"], "`seeds` must be integers, 0 or more"),
        (["--beta", "0.7"], "`beta` must be a number in the interval"),
        (["--dropout", "0.3"], "fc has no dropout; leave the option out"),
        (["--model", "wrn-10-1", "--units", "3"], "wrn-10-1 has no units; leave the option out"),
        (["--dataset", "mnist", "--data-dir", "nowhere"], "must hold mnist.*tfds build mnist"),
        (["--suspects"], "name the `tuning.jsonl`.*Received: --suspects without --tuned"),
        (["--out", f"{__file__}/results"], "`--out` must be a directory that can be written to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments_end_the_command_at_once(arguments, message, capsys, tmp_path):
    with pytest.raises(SystemExit) as error:
        cli.main(["--out", str(tmp_path / "out"), *arguments])
    assert error.value.code == 2
    # argparse breaks no lines in its errors.
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out" / "checkpoints").exists()

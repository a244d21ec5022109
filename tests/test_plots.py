import builtins
import dataclasses
import inspect
import io
import itertools
import re

import keras
import matplotlib
import numpy as np
import pytest
from conftest import JIT_COMPILE
from keras import layers

import keras_parseval as kp
from keras_parseval import plots
from keras_parseval.analysis import CertifiedAccuracy, CovarianceDimension, RobustAccuracy

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PUBLIC = {name: getattr(plots, name) for name in plots.__all__}


@pytest.fixture(autouse=True)
def close_figures():
    plt.close("all")  # those of other files, too
    yield
    plt.close("all")


def pixels(figure):
    """The figure, rendered to PNG and read back."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=50)
    file.seek(0)
    return plt.imread(file)[..., :3]


def dense_models():
    def model(initializer):
        hidden = layers.Dense(24, kernel_initializer=initializer, name="hidden")
        return keras.Sequential([keras.Input((16,)), hidden, layers.Dense(3, name="classifier")])

    return {"plain": model("glorot_uniform"), "tight": model(kp.TightFrame())}


def robust(measure="snr", levels=(33.0, 20.0, 25.0), accuracies=(0.9, 0.5, 0.7)):
    return RobustAccuracy(0.95, measure, levels, accuracies, "FGSM", 100)


def certified(levels=(0.2, 0.1), accuracies=(0.3, 0.6), norm=2):
    return CertifiedAccuracy(0.9, levels, accuracies, norm, "paper", 100)


def dimensions(names=("a", "b"), classes=(0, 1), variance=0.99):
    by_class = tuple((3, 5) for _ in names) if classes else ()
    count = len(names)
    return CovarianceDimension(names, (10,) * count, (8,) * count, classes, by_class, variance, 100)


@dataclasses.dataclass
class Entry:
    name: str
    accumulated: float


@dataclasses.dataclass
class Report:
    entries: tuple


DRAWINGS = {
    "spectra": lambda ax=None: plots.spectra(dense_models(), ax=ax),
    "accuracies": lambda ax=None: plots.accuracies(
        {"plain": robust(), "tight": robust(accuracies=(0.9, 0.7, 0.8))}, ax=ax
    ),
    "learning_curves": lambda ax=None: plots.learning_curves(
        {"plain": {"val_loss": [3, 2, 1]}, "tight": {"val_loss": [2, 1]}}, ax=ax
    ),
    "dimensions": lambda ax=None: plots.dimensions(
        {"plain": dimensions(), "tight": dimensions()}, ax=ax
    ),
    "bounds": lambda ax=None: plots.bounds(
        {"plain": [("a", 2.0), ("b", 9.0)], "tight": [("a", 1.0), ("b", 1.0)]}, ax=ax
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_figure_is_drawn_into_the_axes_it_is_given(name):
    figure, (left, right) = plt.subplots(1, 2)
    settings = dict(matplotlib.rcParams)
    empty = pixels(figure)
    assert DRAWINGS[name](ax=right) is right
    assert dict(matplotlib.rcParams) == settings
    assert plt.get_fignums() == [figure.number]
    changed = np.abs(pixels(figure) - empty).max(axis=(0, 2))
    assert changed[len(changed) * 6 // 10 :].max() > 0.5
    assert not left.has_data() and right.has_data()


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_figure_says_what_it_shows(name):
    ax = DRAWINGS[name]()
    assert pixels(ax.figure).std() > 0.01
    assert ax.get_ylabel()
    assert ax.get_xlabel() or any(tick.get_text() for tick in ax.get_xticklabels())
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert all(any(model in text for text in legend) for model in ("plain", "tight"))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_function_has_an_example_that_runs(name):
    (example,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(PUBLIC[name]), flags=re.DOTALL)
    exec(example, {"keras": keras, "kp": kp})
    assert len(plt.get_fignums()) == 1


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    real_import = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(ImportError, match=r"keras-parseval\[plots\]"):
        DRAWINGS["learning_curves"]()


def outlines(ax):
    """The shares and edges of the histograms, without their fillings."""
    return [patch.get_data() for patch in ax.patches if not patch.get_fill()]


@pytest.mark.parametrize("layer", [None, "hidden", ["hidden"]])
def test_histograms_count_every_singular_value(layer):
    models = dense_models()
    ax = plots.spectra(models, layers=layer)
    plain, tight = outlines(ax)
    counted = 16 if layer else 16 + 3
    for shares, edges, _ in (plain, tight):
        assert sum(shares) == pytest.approx(1)
        np.testing.assert_allclose(shares * counted, np.round(shares * counted), atol=1e-9)
        assert edges[0] == 0
    if layer:
        (bin_of_one,) = np.flatnonzero(tight.values)
        centre = tight.edges[bin_of_one : bin_of_one + 2].mean()
        assert centre == pytest.approx(1)
    assert [line.get_xdata()[0] for line in ax.lines] == [1]


def curve(ax, label):
    (line,) = (line for line in ax.lines if line.get_label() == label)
    return line.get_xdata(), line.get_ydata()


def test_levels_are_in_order_and_clean_is_set_apart():
    ax = plots.accuracies({"plain": robust()})
    x, y = curve(ax, "plain")
    np.testing.assert_array_equal(x, [20, 25, 33])
    np.testing.assert_array_equal(y, [0.5, 0.7, 0.9])
    ticks = dict(zip([text.get_text() for text in ax.get_xticklabels()], ax.get_xticks()))
    assert list(ticks) == ["20", "25", "33", "clean"] and ticks["clean"] > 33
    assert any(
        (line.get_xdata()[0], line.get_ydata()[0]) == (ticks["clean"], 0.95) for line in ax.lines
    )
    assert "dB" in ax.get_xlabel()


def test_epsilons_have_an_axis_of_their_own():
    result = robust("epsilon", (0.1, 0.01), (0.2, 0.8))
    ax = plots.accuracies({"plain": result})
    x, y = curve(ax, "plain")
    assert list(x) == [0.01, 0.1] and list(y) == [0.8, 0.2]
    assert "epsilon" in ax.get_xlabel() and "dB" not in ax.get_xlabel()
    assert any((line.get_xdata()[0], line.get_ydata()[0]) == (0, 0.95) for line in ax.lines)
    with pytest.raises(ValueError, match=r"levels of one measure.*epsilon, snr"):
        plots.accuracies({"a": result, "b": robust()})


def test_certified_accuracies_are_drawn_beside_those_under_attack():
    attacked = robust("epsilon", (0.1, 0.2), (0.8, 0.7))
    ax = plots.accuracies({"attacked": attacked, "certified": certified()})
    x, y = curve(ax, "certified")
    assert list(x) == [0.1, 0.2] and list(y) == [0.6, 0.3]
    assert list(curve(ax, "attacked")[1]) == [0.8, 0.7]
    assert any((line.get_xdata()[0], line.get_ydata()[0]) == (0, 0.9) for line in ax.lines)
    assert list(curve(plots.accuracies({"alone": certified()}), "alone")[0]) == [0.1, 0.2]
    with pytest.raises(ValueError, match=r"levels of one measure.*epsilon, snr"):
        plots.accuracies({"a": certified(), "b": robust()})


def test_learning_curves_skip_epochs_without_a_value():
    history = keras.callbacks.History()
    history.history = {"tightness": [0.5, float("nan"), float("nan"), 0.2]}
    ax = plots.learning_curves(
        {"every third": history, "plain": {"tightness": [1]}}, metric="tightness"
    )
    x, y = curve(ax, "every third")
    assert list(x) == [1, 4] and list(y) == [0.5, 0.2]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "tightness")
    with pytest.raises(ValueError, match=r"those of 'plain' have loss.*metric='val_loss'"):
        plots.learning_curves({"plain": {"loss": [1]}})


def test_bars_are_percentages_of_all_dimensions():
    ax = plots.dimensions({"plain": dimensions(), "tight": dimensions(classes=())})
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert heights == [[80, 80], [40, 40], [80, 80]]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b"]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    other = plots.dimensions({"a": dimensions(), "b": dimensions(("c", "d"))})
    assert [text.get_text() for text in other.get_xticklabels()] == ["layer 1", "layer 2"]
    for different in (dimensions(("a",)), dimensions(variance=0.9)):
        with pytest.raises(ValueError, match="the same number of layers"):
            plots.dimensions({"a": dimensions(), "b": different})


def test_bounds_are_pairs_or_reports():
    pairs = [("conv", 2.0), ("relu", 2.0), ("dense", 6.0)]
    report = Report(tuple(Entry(*pair) for pair in pairs))
    ax = plots.bounds({"pairs": pairs, "report": report})
    for name in ("pairs", "report"):
        np.testing.assert_array_equal(curve(ax, name)[1], [2, 2, 6])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["conv", "relu", "dense"]
    assert ax.get_yscale() == "log"
    gaps = plots.bounds({"a": [("x", 0.0), ("y", np.inf), ("z", 2.0)], "b": pairs})
    assert gaps.get_xlabel() and pixels(gaps.figure).std() > 0.01
    with pytest.raises(ValueError, match="none for 'empty'"):
        plots.bounds({"empty": []})


def test_the_librarys_own_report_is_drawn():
    model = dense_models()["tight"]
    report = kp.lipschitz_bound(model)
    ax = plots.bounds({"tight": report})
    assert curve(ax, "tight")[1][-1] == pytest.approx(report.bound)


@pytest.mark.parametrize(
    "draw, wrong",
    [
        (plots.spectra, layers.Dense(3)),
        (plots.accuracies, 0.9),
        (plots.learning_curves, [1, 2]),
        (plots.dimensions, robust()),
    ],
)
def test_what_cannot_be_drawn_is_an_error(draw, wrong):
    for nothing in ({}, [wrong], wrong):
        with pytest.raises(TypeError, match="must be a dictionary"):
            draw(nothing)
    with pytest.raises(TypeError, match="for 'name'"):
        draw({"name": wrong})
    assert plt.get_fignums() == []


def test_models_with_unknown_layers_or_nan_are_errors():
    models = dense_models()
    with pytest.raises(ValueError, match="among them hidden, classifier"):
        plots.spectra(models, layers="third")
    models["plain"].layers[0].kernel.assign(np.full((16, 24), np.nan))
    with pytest.raises(ValueError, match="infinity in model 'plain'"):
        plots.spectra(models)


def image_classifier(shape=(6, 5, 1), units=3):
    """Says how bright an image is, in `units` classes."""
    model = keras.Sequential([keras.Input(shape), layers.Flatten(), layers.Dense(units)])
    size = int(np.prod(shape))
    steps = np.arange(units) if units > 1 else np.ones(1)
    kernel = np.tile(steps / size, (size, 1))
    offsets = -(np.arange(units) ** 2) / 6 if units > 1 else -0.5 * np.ones(1)
    model.layers[-1].set_weights([kernel, offsets])
    loss = keras.losses.BinaryCrossentropy if units == 1 else keras.losses.CategoricalCrossentropy
    model.compile("sgd", loss(from_logits=True), jit_compile=JIT_COMPILE)
    return model


def grey(values, shape=(6, 5, 1)):
    """Images of one brightness each, with one black pixel."""
    images = np.stack([np.full(shape, value, "float32") for value in values])
    images[:, 0, 0] = 0
    return images


# Brightness 0.1 is class 0, 0.3 class 1 and 0.9 class 2 of three; above 0.5 is class 1 of two.
BRIGHT = (0.1, 0.3, 0.9, 0.9)
ATTACKED = (0.1, 0.9, 0.9, 0.3)


def titles(axes):
    return [[ax.get_title() for ax in row] for row in axes]


def test_the_grid_says_what_the_model_decides():
    model, x, x_adv = image_classifier(), grey(BRIGHT), grey(ATTACKED)
    axes = plots.adversarial_images(model, x, x_adv)
    assert axes.shape == (3, 4)
    assert titles(axes) == [["0", "1", "2", "2"], ["0", "2,\nnot 1", "2", "1,\nnot 2"], [""] * 4]
    assert [ax.get_xlabel() for ax in axes[2]] == [
        f"{ratio:.1f} dB" for ratio in kp.attacks.snr(x, x_adv)
    ]
    assert [row[0].get_ylabel().split("\n")[0] for row in axes] == [
        "clean",
        "adversarial",
        "difference",
    ]
    assert pixels(axes[0, 0].figure).std() > 0.1
    names, labels = ["dark", "dim", "bright"], np.eye(3)[[0, 1, 2, 0]]
    axes = plots.adversarial_images(model, x, x_adv, labels, class_names=names, count=3)
    assert titles(axes)[1] == ["dark", "bright,\nnot dim", "bright"]
    axes = plots.adversarial_images(model, x, x_adv, labels.argmax(1)[:, None])
    assert titles(axes)[0] == ["0", "1", "2", "2,\nnot 0"]


def test_the_grid_of_a_binary_classifier():
    model = image_classifier(units=1)
    axes = plots.adversarial_images(model, grey(BRIGHT), grey(ATTACKED))
    assert titles(axes)[:2] == [["0", "0", "1", "1"], ["0", "1,\nnot 0", "1", "0,\nnot 1"]]


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3)], ids=str)
def test_images_and_differences_are_shown_to_scale(shape):
    model = image_classifier(shape)
    x = 200 * grey(BRIGHT, shape) - 100  # any range
    x_adv = x.copy()
    x_adv[0, 3, 3] += 10
    x_adv[1, 2, 2] -= 5
    figure = plt.figure()
    axes = plots.adversarial_images(model, x, x_adv, fig=figure)
    assert axes[0, 0].figure is figure and plt.get_fignums() == [figure.number]
    shown = [[np.asarray(ax.images[0].get_array()) for ax in row] for row in axes]
    expected = (x.reshape(4, 6, 5, -1) + 100) / 180
    np.testing.assert_allclose(np.reshape(shown[0], expected.shape), expected, atol=1e-6)
    # The largest change fills half the range, from grey to white or black.
    assert axes[2, 0].get_ylabel() == "difference\nx 9"
    noise = np.reshape(shown[2], expected.shape)
    np.testing.assert_allclose(noise[0, 3, 3], 1, atol=1e-6)
    np.testing.assert_allclose(noise[1, 2, 2], 0.25, atol=1e-6)
    np.testing.assert_allclose(noise[2:], 0.5, atol=1e-6)


def test_images_without_any_difference_are_shown():
    x = grey(BRIGHT)
    axes = plots.adversarial_images(image_classifier(), x, x)
    assert [ax.get_xlabel() for ax in axes[2]] == ["inf dB"] * 4
    np.testing.assert_allclose(axes[2, 0].images[0].get_array(), 0.5)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"count": 0}, ValueError, "`count` must be"),
        ({"x_adv": grey(BRIGHT[:2])}, ValueError, "the same shape"),
        ({"x": np.ones((4, 30)), "x_adv": np.ones((4, 30))}, ValueError, "Images must have"),
        ({"y": [0.5] * 4}, ValueError, "Labels must be integers"),
        ({"class_names": ["dark"]}, ValueError, "a name for every class.*1 names, for class 2"),
    ],
    ids=["count", "shape", "flat", "labels", "names"],
)
def test_bad_arguments_of_the_grid_are_refused(arguments, error, message):
    given = {"x": grey(BRIGHT), "x_adv": grey(ATTACKED), **arguments}
    with pytest.raises(error, match=message):
        plots.adversarial_images(image_classifier(), **given)
    assert plt.get_fignums() == []

"""Figures of what the library measures. They need matplotlib: `keras-parseval[plots]`.

Each function draws into the Axes it is given, or into a figure of its own, and
returns the Axes. None of them changes matplotlib's settings or shows a window.
"""

import itertools

import keras
import numpy as np
from keras import ops

from keras_parseval._validation import check_integer
from keras_parseval.analysis.covariance import CovarianceDimension, class_indices
from keras_parseval.analysis.spectra import kernel_singular_values, select_kernels
from keras_parseval.classifier import Classifier
from keras_parseval.noise import snr
from keras_parseval.robustness import RobustAccuracy

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def singular_values(models, layer=None, ax=None):
    """Histograms of the singular values of several models.

    The values are divided by their target, so that 1, the dotted line, means tight for
    every kernel. The vertical axis is logarithmic: the values of a tight frame are all in one bin.

    Args:
        models: Dictionary of built models, by the names for the legend.
        layer: The layers to count: a layer's name or a list of names. By default all that
            have kernels, the classifier among them.
        ax: The Axes to draw into.

    Returns:
        The Axes.

    Example:

    ```python
    layers = [keras.layers.Dense(64, kernel_initializer=kp.TightFrame()), keras.layers.Dense(64)]
    models = {
        name: keras.Sequential([keras.Input((64,)), layer])
        for name, layer in zip(("tight", "plain"), layers)
    }
    kp.plots.singular_values(models)
    ```
    """
    _check_named("models", models, keras.Model)
    spectra = {name: _relative_spectrum(name, model, layer) for name, model in models.items()}
    ax = _axes(ax)
    edges = _bins(max(1.5, *(values.max() for values in spectra.values())))
    for (name, values), style in zip(spectra.items(), _styles()):
        shares = np.histogram(values, edges)[0] / len(values)
        ax.stairs(shares, edges, fill=True, color=style["color"], alpha=0.25)
        line = {"color": style["color"], "linestyle": style["linestyle"]}
        ax.stairs(shares, edges, label=name, linewidth=1.5, **line)
    ax.axvline(1, color="black", linestyle=":", linewidth=1)
    ax.set_yscale("log")
    ax.set_xlim(0, edges[-1])
    ax.set_xlabel("singular value / target")
    ax.set_ylabel("share of the singular values")
    return _finish(ax)


def accuracy_against_snr(results, ax=None):
    """The accuracy of several models under attack, against the strength of the attack.

    Signal-to-noise ratios rise, and so attacks weaken, to the right, where the clean
    accuracy is set apart. Epsilons rise to the right, and the clean accuracy is at 0.

    Args:
        results: Dictionary of `kp.RobustAccuracy`, by the names for the legend.
        ax: The Axes to draw into.

    Returns:
        The Axes.

    Example:

    ```python
    plain = kp.RobustAccuracy(0.98, "snr", (40, 33, 25), (0.96, 0.91, 0.60), "FGSM", 1000)
    parseval = kp.RobustAccuracy(0.97, "snr", (40, 33, 25), (0.97, 0.95, 0.84), "FGSM", 1000)
    kp.plots.accuracy_against_snr({"plain": plain, "Parseval": parseval})
    ```
    """
    _check_named("results", results, RobustAccuracy)
    measures = {result.measure for result in results.values()}
    if len(measures) > 1:
        raise ValueError(
            "Results must have levels of one measure to share an axis; plot SNR and epsilon "
            f"apart. Received: measures {', '.join(sorted(measures))}"
        )
    ax = _axes(ax)
    levels = sorted({level for result in results.values() for level in result.levels})
    by_snr = measures == {"snr"}
    clean = levels[-1] + max(3, 0.2 * (levels[-1] - levels[0])) if by_snr else 0
    for (name, result), style in zip(results.items(), _styles()):
        points = sorted(zip(result.levels, result.accuracies))
        ax.plot(*zip(*points), label=name, **style)
        ax.plot(clean, result.clean, **style)
        nearest = points[-1 if by_snr else 0]
        ax.plot(*zip(nearest, (clean, result.clean)), color=style["color"], linewidth=0.5)
    if by_snr:
        ticks = levels[:: -(-len(levels) // 8)]
        ax.set_xticks([*ticks, clean], [*(f"{level:g}" for level in ticks), "clean"])
        ax.set_xlabel("signal-to-noise ratio (dB); the attack weakens to the right")
    else:
        ax.set_xlabel("epsilon, in units of the input; 0 is clean")
    ax.set_ylabel("accuracy")
    return _finish(ax)


def learning_curves(histories, metric="val_loss", ax=None):
    """One metric of several trainings, epoch by epoch. Epochs where it is NaN are skipped.

    Args:
        histories: Dictionary of what `fit` returned, or of its `history`, by the names
            for the legend.
        metric: The key of the metric in the logs.
        ax: The Axes to draw into.

    Returns:
        The Axes.

    Example:

    ```python
    histories = {"plain": {"val_loss": [0.9, 0.5, 0.4]}, "Parseval": {"val_loss": [0.7, 0.4, 0.3]}}
    kp.plots.learning_curves(histories)
    ```
    """
    _check_named("histories", histories, (keras.callbacks.History, dict))
    logs = {name: getattr(each, "history", each) for name, each in histories.items()}
    for name, log in logs.items():
        if metric not in log:
            raise ValueError(
                f"`metric` must be in the logs of every training; those of '{name}' have "
                f"{', '.join(log)}. Received: metric={metric!r}"
            )
    ax = _axes(ax)
    for (name, log), style in zip(logs.items(), _styles()):
        values = np.asarray(log[metric], "float64")
        known = np.flatnonzero(~np.isnan(values))
        ax.plot(known + 1, values[known], label=name, **style, markevery=max(1, len(known) // 10))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("epoch")
    ax.set_ylabel(metric)
    return _finish(ax)


def covariance_dimension(results, ax=None):
    """How many dimensions the activations of several models fill, layer by layer.

    Args:
        results: Dictionary of `kp.CovarianceDimension`, by the names for the legend. All
            must have the same number of layers; where the names differ, layers are numbered.
        ax: The Axes to draw into.

    Returns:
        The Axes.

    Example:

    ```python
    layers, features = ("first", "second"), (64, 64)
    plain = kp.CovarianceDimension(layers, features, (40, 4), (0,), ((20,), (3,)), 0.99, 1000)
    parseval = kp.CovarianceDimension(layers, features, (58, 50), (0,), ((25,), (24,)), 0.99, 1000)
    kp.plots.covariance_dimension({"plain": plain, "Parseval": parseval})
    ```
    """
    _check_named("results", results, CovarianceDimension)
    kinds = {(len(result.layers), result.variance) for result in results.values()}
    if len(kinds) > 1:
        raise ValueError(
            "Results must have the same number of layers and the same `variance` to be compared. "
            f"Received: {' and '.join(f'{each} layers at {part:g}' for each, part in kinds)}"
        )
    ((layers, variance),) = kinds
    ax = _axes(ax)
    bars = [
        (name, result, kind)
        for name, result in results.items()
        for kind in (("all", "class") if result.classes else ("all",))
    ]
    positions, width = np.arange(layers), 0.8 / len(bars)
    colors = {name: style["color"] for name, style in zip(results, _styles())}
    for index, (name, result, kind) in enumerate(bars):
        heights = [row[f"{kind}_percent"] for row in result.to_rows()]
        offset = (index - (len(bars) - 1) / 2) * width
        look = {"color": colors[name], "edgecolor": colors[name]}
        if kind == "class":
            look.update(color="white", hatch="////")
        ax.bar(positions + offset, heights, width * 0.9, label=f"{name}, {kind}", **look)
    names = {result.layers for result in results.values()}
    labels = names.pop() if len(names) == 1 else [f"layer {each + 1}" for each in positions]
    ax.set_xticks(positions, labels)
    ax.set_ylabel(f"dimensions that hold {100 * variance:g}%\nof the covariance (% of all)")
    return _finish(ax)


def adversarial_grid(model, x, x_adv, y=None, class_names=None, count=8, fig=None):
    """Images before and after an attack, what was added, and what the model says of them.

    The rows are the clean images, the adversarial ones, and the difference, amplified by
    one factor for all, around grey. Decisions are marked where they are wrong, or where the
    attack changed them if the labels are not given. Below are the signal-to-noise ratios.

    Args:
        model: A built Keras classifier with images for input; it is left as it is.
        x: The clean images, grey or RGB, in any range.
        x_adv: The same, under attack.
        y: The labels: integers or one-hot.
        class_names: The names of the classes, in the order of the model's outputs.
        count: How many images to show, from the first on.
        fig: The Figure or SubFigure to draw into.

    Returns:
        Array of Axes, with 3 rows and a column for each image.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(3, "softmax"))
    model.compile(loss="sparse_categorical_crossentropy")
    x = keras.random.uniform((4, 8, 8, 1))
    kp.plots.adversarial_grid(model, x, kp.FGSM(0.05)(model, x))
    ```
    """
    count = check_integer("count", count, "a positive integer", lambda value: value > 0)
    ratios = snr(x, x_adv)[:count]
    images, attacked = (_as_images(each[:count]) for each in (x, x_adv))
    decisions = [_decisions(model, each[:count], class_names) for each in (x, x_adv)]
    labels = decisions[0] if y is None else _named(class_indices(y[:count]), class_names)
    if fig is None:
        fig = _pyplot().figure(figsize=(1.2 * len(images) + 0.6, 4.6), layout="constrained")
    axes = fig.subplots(3, len(images), squeeze=False)
    low, high = images.min(), images.max()
    factor = (high - low) / (2 * np.abs(attacked - images).max() or 1.0)
    noise = factor * (attacked - images) + (low + high) / 2
    _draw_images(axes[0], images, low, high, "clean")
    _draw_images(axes[1], attacked, low, high, "adversarial")
    _draw_images(axes[2], noise, low, high, f"difference\nx {factor:.3g}")
    for row, answers in zip(axes, decisions):
        _write_answers(row, answers, labels)
    for ax, ratio in zip(axes[2], ratios):
        ax.set_xlabel(f"{ratio:.1f} dB", size=8)
    return axes


def lipschitz_bound(bounds, ax=None):
    """How the bound on the Lipschitz constant of several models grows from layer to layer.

    The vertical axis is logarithmic, so that values of zero or infinity leave a gap.

    Args:
        bounds: Dictionary, by the names for the legend, of reports with `entries`, each of
            which has a `name` and its `accumulated` bound; or of lists of such pairs.
        ax: The Axes to draw into.

    Returns:
        The Axes.

    Example:

    ```python
    plain = [("dense", 3.1), ("relu", 3.1), ("dense_1", 12.4)]
    parseval = [("dense", 1.0), ("relu", 1.0), ("dense_1", 1.8)]
    kp.plots.lipschitz_bound({"plain": plain, "Parseval": parseval})
    ```
    """
    _check_named("bounds", bounds, object)
    walks = {name: _walk(name, bound) for name, bound in bounds.items()}
    ax = _axes(ax)
    for (name, walk), style in zip(walks.items(), _styles()):
        ax.plot(range(1, len(walk) + 1), [value for _, value in walk], label=name, **style)
    ax.set_yscale("log", nonpositive="mask")
    _plain_numbers(ax.yaxis)
    steps = {tuple(step for step, _ in walk) for walk in walks.values()}
    names = steps.pop()
    if steps or len(names) > 24:
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("layer, counted from the input")
    else:
        ax.set_xticks(range(1, len(names) + 1), names, rotation=45, ha="right")
    ax.set_ylabel("bound on the Lipschitz constant,\nfrom the input to here")
    return _finish(ax)


def _pyplot():
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            'Figures need matplotlib; install it with `pip install "keras-parseval[plots]"`.'
        ) from error
    return matplotlib.pyplot


def _axes(ax):
    return _pyplot().subplots(layout="constrained")[1] if ax is None else ax


def _styles():
    """Colours, lines and markers, any two of which differ in more than the colour."""
    for color, line, marker in zip(*map(itertools.cycle, (_COLORS, _LINES, _MARKERS))):
        yield {"color": color, "linestyle": line, "marker": marker, "markersize": 5}


def _finish(ax):
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return ax


def _check_named(name, named, kind):
    if not isinstance(named, dict) or not named:
        raise TypeError(
            f"`{name}` must be a dictionary, with the names for the legend as its keys. "
            f"Received: {named!r}"
        )
    for key, value in named.items():
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise TypeError(
                f"The values of `{name}` must be {' or '.join(each.__name__ for each in kinds)}. "
                f"Received: {value!r} for '{key}'"
            )


def _relative_spectrum(name, model, layer):
    kernels = select_kernels(model, layer).values()
    values = np.concatenate([kernel_singular_values(kernel, relative=True) for kernel in kernels])
    if not np.isfinite(values).all():
        raise ValueError(f"Kernels must be finite. Received: NaN or infinity in model '{name}'")
    return values


def _bins(largest):
    """About 40 bins from 0, one of which is centred at 1: it takes all of a tight frame."""
    width = 1 / (round(40 / largest) + 0.5)
    return width * np.arange(np.ceil(largest / width) + 1)


def _plain_numbers(axis):
    """Numbers such as 1.5 on a logarithmic axis, which would have 1.5 x 10^0."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter())


def _as_images(images):
    """Images with channels last, in three colours or none, in float64."""
    images = ops.convert_to_numpy(images).astype("float64")
    if images.ndim == 4 and keras.config.image_data_format() == "channels_first":
        images = np.moveaxis(images, 1, -1)
    if images.ndim == 4 and images.shape[-1] == 1:
        images = images[..., 0]
    if not len(images) or (images.ndim != 3 and images.shape[3:] != (3,)):
        raise ValueError(
            "Images must have shape (n, height, width), with 1 or 3 channels or none, and there "
            f"must be one at least. Received: shape {images.shape}"
        )
    return images


def _draw_images(row, images, low, high, label):
    row[0].set_ylabel(label)
    for ax, image in zip(row, images):
        scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1)
        ax.imshow(scaled, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])


def _write_answers(row, answers, labels):
    for ax, answer, label in zip(row, answers, labels):
        if answer == label:
            ax.set_title(answer, size=8)
        else:
            ax.set_title(f"{answer},\nnot {label}", size=8, weight="bold", color=_COLORS[1])


def _decisions(model, images, class_names):
    outputs = model(ops.convert_to_tensor(images), training=False)
    if outputs.shape[-1] > 1:
        labels = ops.argmax(outputs, axis=-1)
    else:
        classifier = Classifier(model)
        labels = classifier.predicted_labels(classifier.outputs(images))[:, 0]
    return _named(ops.convert_to_numpy(labels), class_names)


def _named(labels, class_names):
    if class_names is None:
        return [str(label) for label in labels]
    if max(labels) >= len(class_names):
        raise ValueError(
            "`class_names` must have a name for every class. "
            f"Received: {len(class_names)} names, for class {max(labels)}"
        )
    return [str(class_names[label]) for label in labels]


def _walk(name, bound):
    """Pairs of names and accumulated bounds."""
    entries = getattr(bound, "entries", None)
    walk = list(bound) if entries is None else [(each.name, each.accumulated) for each in entries]
    if not walk:
        raise ValueError(f"A bound must have one entry at least. Received: none for '{name}'")
    return walk

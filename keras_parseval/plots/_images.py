"""Images before and after an attack."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._classifier import Classifier
from keras_parseval._validation import check_integer
from keras_parseval.analysis._covariance import class_indices
from keras_parseval.attacks._levels import snr
from keras_parseval.plots._style import COLORS, pyplot


def adversarial_images(
    model: Any,
    x: Any,
    x_adv: Any,
    y: Any = None,
    *,
    class_names: Any = None,
    count: int = 8,
    fig: Any = None,
) -> np.ndarray:
    """Images before and after an attack, what was added, and what the model says of them.

    The rows are the clean images, the adversarial ones, and the difference, amplified by
    one factor for all, around grey. Decisions are marked where they are wrong, or where the
    attack changed them if the labels are not given. Below are the signal-to-noise ratios.

    Args:
        model: A built Keras classifier with images for input; it is left as it is.
        x: The clean images, grey or RGB, in any range.
        x_adv: The same, under attack.
        y: The labels: integers or one-hot. Defaults to `None`.
        class_names: The names of the classes, in the order of the model's outputs.
            Defaults to their numbers.
        count: How many images to show, from the first on. Defaults to 8.
        fig: The Figure or SubFigure to draw into. Defaults to a new one.

    Returns:
        Array of Axes, with 3 rows and a column for each image.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(3, "softmax"))
    model.compile(loss="sparse_categorical_crossentropy")
    x = keras.random.uniform((4, 8, 8, 1))
    kp.plots.adversarial_images(model, x, kp.FGSM()(model, x, epsilon=0.05))
    ```
    """
    count = check_integer("count", count, "a positive integer", lambda value: value > 0)
    ratios = snr(x, x_adv)[:count]
    images, attacked = (_as_images(each[:count]) for each in (x, x_adv))
    decisions = [_decisions(model, each[:count], class_names) for each in (x, x_adv)]
    labels = decisions[0] if y is None else _named(class_indices(y[:count]), class_names)
    if fig is None:
        fig = pyplot().figure(figsize=(1.2 * len(images) + 0.6, 4.6), layout="constrained")
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


def _as_images(images: Any) -> np.ndarray:
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


def _draw_images(row: Any, images: Any, low: float, high: float, label: str) -> None:
    row[0].set_ylabel(label)
    for ax, image in zip(row, images):
        scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1)
        ax.imshow(scaled, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])


def _write_answers(row: Any, answers: list[str], labels: list[str]) -> None:
    for ax, answer, label in zip(row, answers, labels):
        if answer == label:
            ax.set_title(answer, size=8)
        else:
            ax.set_title(f"{answer},\nnot {label}", size=8, weight="bold", color=COLORS[1])


def _decisions(model: Any, images: Any, class_names: Any) -> list[str]:
    outputs = model(ops.convert_to_tensor(images), training=False)
    if outputs.shape[-1] > 1:
        labels = ops.argmax(outputs, axis=-1)
    else:
        classifier = Classifier(model)
        labels = classifier.predicted_labels(classifier.outputs(images))[:, 0]
    return _named(ops.convert_to_numpy(labels), class_names)


def _named(labels: Any, class_names: Any) -> list[str]:
    if class_names is None:
        return [str(label) for label in labels]
    if max(labels) >= len(class_names):
        raise ValueError(
            "`class_names` must have a name for every class. "
            f"Received: {len(class_names)} names, for class {max(labels)}"
        )
    return [str(class_names[label]) for label in labels]

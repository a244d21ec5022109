"""In how many dimensions the activations of a network live."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled
from keras_parseval._batches import Examples, padded
from keras_parseval._keras_internals import Call, calls_in_order, check_graph
from keras_parseval._layer_kernels import layer_kernels
from keras_parseval._progress import Progress, Verbose
from keras_parseval._validation import check_flag, check_number

# The matrix of second moments has half a gigabyte at this size.
MAX_FEATURES = 8192


@dataclasses.dataclass(frozen=True)
class CovarianceDimension:
    """What `kp.analysis.covariance_dimension` measured. Prints as a table, in % of all dimensions.

    Args:
        layers: The names of the layers.
        features: The dimension of the activations of each layer.
        overall: For each layer, how many dimensions the activations of all examples need.
        classes: The classes that occur, or nothing if they were not told apart.
        by_class: For each layer, how many dimensions each class needs.
        variance: The part of the covariance that these dimensions hold.
        examples: How many examples were counted.

    Example:

    ```python
    result = kp.analysis.CovarianceDimension(
        ("dense",), (64,), (48,), (0, 1), ((20, 28),), 0.99, 1000
    )
    print(result)
    result.to_rows()[0]["class"]  # 24.0, the average of the classes
    ```
    """

    layers: tuple[str, ...]
    features: tuple[int, ...]
    overall: tuple[int, ...]
    classes: tuple[int, ...]
    by_class: tuple[tuple[int, ...], ...]
    variance: float
    examples: int

    def to_rows(self) -> list[dict[str, Any]]:
        """A dictionary for each layer: what `pandas.DataFrame` takes.

        `all` and `class` are numbers of dimensions, `class` the average of the classes (`None` if
        they were not told apart); `all_percent` and `class_percent` are in % of `features`.
        """
        rows = []
        for index, (layer, features) in enumerate(zip(self.layers, self.features)):
            counts: dict[str, float | None] = {"all": self.overall[index], "class": None}
            if self.classes:
                counts["class"] = float(np.mean(self.by_class[index]))
            percent = {
                f"{key}_percent": None if count is None else 100 * count / features
                for key, count in counts.items()
            }
            rows.append({"layer": layer, "features": features, **counts, **percent})
        return rows

    def __str__(self) -> str:
        columns = ["all", "class"] if self.classes else ["all"]
        width = max(len(name) for name in ("layer", *self.layers))
        lines = [
            f"Dimensions that hold {100 * self.variance:g}% of the covariance of the activations, "
            f"in % of all features; {self.examples} examples",
            f"{'layer':{width}}{'features':>10}" + "".join(f"{name:>8}" for name in columns),
        ]
        for row in self.to_rows():
            values = "".join(f"{row[f'{name}_percent']:8.1f}" for name in columns)
            lines.append(f"{row['layer']:{width}}{row['features']:>10}{values}")
        return "\n".join(lines)


def covariance_dimension(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    layers: Any = None,
    variance: float = 0.99,
    per_class: bool = True,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> CovarianceDimension:
    """How many dimensions hold 99% of the covariance of each layer's activations.

    The local covariance dimension, as in the paper: of the matrix of second moments,
    `mean(phi phi^T)` over the examples, where `phi` are the activations of a layer, not
    centred, the smallest number of eigenvalues whose sum is `variance` of the sum of all. For
    all examples together, and for those of each class.

    The data is read once, and may be of any size; how it is split into batches makes no
    difference. Sums are taken in float64. They need `8 d^2` bytes for each layer and class,
    where a layer has `d` features: 32 megabytes at 2,048 features. Fewer examples than features
    are no obstacle, but they cannot show more dimensions than there are examples.

    Args:
        model: A functional or Sequential model; it is left exactly as it is, and runs
            in inference mode.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`: a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, a PyTorch `DataLoader`, or any iterable.
        y: The labels, where `x` is arrays: integers or one-hot. With `per_class=False` there
            need not be any.
        layers: Layers of the model, or their names, whose outputs to measure. By default all
            layers that have kernels, except where their output is the model's. If the
            activation is a layer of its own, name that layer. Defaults to `None`.
        variance: The part of the covariance to hold, between 0 and 1. Defaults to 0.99.
        per_class: Whether to measure class by class, too. Defaults to `True`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        verbose: As in `kp.robust_accuracy`. Defaults to `"auto"`.

    Returns:
        A `kp.analysis.CovarianceDimension`.

    Example:

    ```python
    hidden = [keras.layers.Dense(16, "relu"), keras.layers.Dense(16, "relu")]
    model = keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(3)])
    x, y = keras.random.uniform((64, 8)), keras.random.randint((64,), 0, 3)
    print(kp.analysis.covariance_dimension(model, x, y))
    ```
    """
    rule = "a number between 0 and 1, both excluded: rounding hides the last dimensions"
    variance = check_number("variance", variance, rule, lambda value: 0 < value < 1)
    check_flag("per_class", per_class)
    check_graph(model)
    tensors = _output_tensors(model, layers)
    inputs = model.inputs if isinstance(model, keras.Sequential) else model.input
    extractor = keras.Model(inputs, list(tensors.values()))
    examples = Examples(x, y, batch_size=batch_size, labels=per_class)
    progress = Progress(examples.total, verbose)
    sums, count = _sum_moments(extractor, list(tensors), examples, per_class, progress)
    classes = tuple(sorted(sums)) if per_class else ()
    counts = [[_dimension(each, variance) for each in sums[label]] for label in classes]
    return CovarianceDimension(
        layers=tuple(tensors),
        features=tuple(math.prod(tensor.shape[1:]) for tensor in tensors.values()),
        overall=tuple(_dimension(np.sum(each, axis=0), variance) for each in zip(*sums.values())),
        classes=classes,
        by_class=tuple(zip(*counts)),
        variance=variance,
        examples=count,
    )


def class_indices(labels: Any) -> np.ndarray:
    """Labels as integers, from integers of shape `(n,)` or `(n, 1)` or one-hot rows."""
    given = ops.convert_to_numpy(labels)
    labels = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    if labels.ndim == 2 and (np.sort(labels)[:, :-1] == 0).all() and (labels.max(1) == 1).all():
        labels = labels.argmax(axis=1)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf" or (labels != np.floor(labels)).any():
        raise ValueError(
            "Labels must be integers, one for each example, or one-hot rows. "
            f"Received: labels of shape {given.shape} and dtype {given.dtype}"
        )
    return labels.astype("int64")


def _dimension(moments: np.ndarray, variance: float) -> int:
    """The smallest number of eigenvalues whose sum is `variance` of the sum of all."""
    eigenvalues = np.maximum(np.linalg.eigvalsh(moments)[::-1], 0)
    held = np.concatenate([[0], np.cumsum(eigenvalues)])
    return int(np.searchsorted(held, variance * held[-1]))


def _sum_moments(
    extractor: Any, names: list[str], examples: Examples, per_class: bool, progress: Progress
) -> tuple[dict[int, list[np.ndarray]], int]:
    """For each class the sums of `phi phi^T`, layer by layer, and the number of all examples.

    Unless they are told apart, all examples are of class 0.
    """
    sums: dict[int, list[np.ndarray]] = {}
    examples_seen = size = 0
    for inputs, given in examples:
        count = len(keras.tree.flatten(inputs)[0])
        labels = class_indices(given) if per_class else np.zeros(count, "int64")
        size = max(size, count)
        activations = _activations(extractor, inputs, count, size)
        for name, phi in zip(names, activations):
            _check_finite(name, phi)
        for label in np.unique(labels).tolist():
            if label not in sums:
                sums[label] = [np.zeros((phi.shape[1],) * 2) for phi in activations]
            for total, phi in zip(sums[label], activations):
                total += phi[labels == label].T @ phi[labels == label]
        examples_seen += count
        progress.advance()
    return sums, examples_seen


def _check_finite(layer: str, activations: np.ndarray) -> None:
    if not np.isfinite(activations).all():
        raise ValueError(
            "Activations must be finite to have a covariance; look for NaN in the weights. "
            f"Received: activations of the layer '{layer}' with NaN or infinity"
        )


def _activations(extractor: Any, inputs: Any, count: int, size: int) -> list[np.ndarray]:
    """What the layers return for a batch, as one row of float64 for each example."""

    def infer(model: Any, inputs: Any) -> Any:
        return model(inputs, training=False)

    outputs = call_compiled(extractor, "activations", infer, padded(inputs, size))
    arrays = [ops.convert_to_numpy(each)[:count] for each in keras.tree.flatten(outputs)]
    return [array.reshape(count, -1).astype("float64") for array in arrays]


def _output_tensors(model: Any, layers: Any) -> dict[str, Any]:
    """The outputs of layers in the graph of the model, by name."""
    calls: dict[str, list[Call]] = {}
    for call in calls_in_order(model):
        if isinstance(call.operation, keras.layers.Layer):
            calls.setdefault(call.operation.name, []).append(call)
    if layers is None:
        layers = _hidden_layers(model, calls)
    layers = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if not layers:
        raise ValueError(
            "There must be a hidden layer with a kernel, or `layers` must name the layers to "
            f"measure, among them {', '.join(calls)}. Received: model '{model.name}'"
        )
    tensors = {}
    for layer in layers:
        name = layer if isinstance(layer, str) else getattr(layer, "name", None)
        if name not in calls or layer not in (name, calls[name][0].operation):
            raise ValueError(
                "`layers` must be layers of the model, or their names, among them "
                f"{', '.join(calls)}; to look into a model inside it, measure that "
                f"model. Received: {layer!r}"
            )
        tensors[name] = _single_output(name, calls[name])
    return tensors


def _hidden_layers(model: Any, calls: dict[str, list[Call]]) -> list[str]:
    """The names of the layers with kernels whose output is not the model's."""
    final = {id(tensor) for tensor in model.outputs}
    return [
        name
        for name, own in calls.items()
        if layer_kernels(own[0].operation)
        and not final.intersection(id(tensor) for call in own for tensor in call.outputs)
    ]


def _single_output(name: str, calls: list[Call]) -> Any:
    if len(calls) > 1 or len(calls[0].outputs) != 1:
        raise ValueError(
            "A layer must be called once, and return one tensor, for its activations to be "
            f"measured; choose other layers with `layers`. Received: layer '{name}', called "
            f"{len(calls)} times, which returns {len(calls[0].outputs)} tensors"
        )
    tensor = calls[0].outputs[0]
    shape = tensor.shape[1:]
    if None in shape or math.prod(shape) > MAX_FEATURES:
        raise ValueError(
            f"Activations must have a fixed size of at most {MAX_FEATURES} features, because the "
            "memory grows with its square; pool them first, and choose the pooled layer with "
            f"`layers`. Received: layer '{name}' with activations of shape {tuple(shape)}"
        )
    return tensor

"""In how many dimensions the activations of a network live."""

import dataclasses
import math

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import call_compiled
from keras_parseval._data import batches_of, padded
from keras_parseval._validation import check_flag, check_number
from keras_parseval.graph import calls_in_order, check_graph
from keras_parseval.layer_kernels import layer_kernels

# The matrix of second moments has half a gigabyte at this size.
MAX_FEATURES = 8192


@dataclasses.dataclass(frozen=True)
class CovarianceDimension:
    """What `kp.covariance_dimension` measured. Prints as a table, in % of all dimensions.

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
    result = kp.CovarianceDimension(("dense",), (64,), (48,), (0, 1), ((20, 28),), 0.99, 1000)
    print(result)
    result.to_rows()[0]["class"]  # 24.0, the average of the classes
    ```
    """

    layers: tuple
    features: tuple
    overall: tuple
    classes: tuple
    by_class: tuple
    variance: float
    examples: int

    def to_rows(self):
        """A dictionary for each layer: what `pandas.DataFrame` takes.

        `all` and `class` are numbers of dimensions, `class` the average of the classes (`None` if
        they were not told apart); `all_percent` and `class_percent` are in % of `features`.
        """
        rows = []
        for index, (layer, features) in enumerate(zip(self.layers, self.features)):
            counts = {"all": self.overall[index], "class": None}
            if self.classes:
                counts["class"] = float(np.mean(self.by_class[index]))
            percent = {
                f"{key}_percent": None if count is None else 100 * count / features
                for key, count in counts.items()
            }
            rows.append({"layer": layer, "features": features, **counts, **percent})
        return rows

    def __str__(self):
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


def covariance_dimension(model, data, layers=None, variance=0.99, per_class=True, batch_size=128):
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
        data: Arrays, as a tuple `(x, y)`; or a data set of batches `(x, y)`: a
            `tf.data.Dataset`, a `keras.utils.PyDataset`, a PyTorch `DataLoader`, or any iterable.
            The labels are integers or one-hot. With `per_class=False` they may be missing.
        layers: Layers of the model, or their names, whose outputs to measure. By default all
            layers that have kernels, except where their output is the model's. If the
            activation is a layer of its own, name that layer.
        variance: The part of the covariance to hold, between 0 and 1.
        per_class: Whether to measure class by class, too.
        batch_size: Number of examples at a time, where the data is arrays.

    Returns:
        A `kp.CovarianceDimension`.

    Example:

    ```python
    hidden = [keras.layers.Dense(16, "relu"), keras.layers.Dense(16, "relu")]
    model = keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(3)])
    x, y = keras.random.uniform((64, 8)), keras.random.randint((64,), 0, 3)
    print(kp.covariance_dimension(model, (x, y)))
    ```
    """
    rule = "a number between 0 and 1, both excluded: rounding hides the last dimensions"
    variance = check_number("variance", variance, rule, lambda value: 0 < value < 1)
    check_flag("per_class", per_class)
    check_graph(model)
    tensors = _output_tensors(model, layers)
    inputs = model.inputs if isinstance(model, keras.Sequential) else model.input
    extractor = keras.Model(inputs, list(tensors.values()))
    batches = _labelled_batches(data, per_class, batch_size)
    sums, examples = _sum_moments(extractor, list(tensors), batches)
    if not examples:
        raise ValueError("There must be at least one example. Received: an empty data set")
    classes = tuple(sorted(sums)) if per_class else ()
    counts = [[_dimension(each, variance) for each in sums[label]] for label in classes]
    return CovarianceDimension(
        layers=tuple(tensors),
        features=tuple(math.prod(tensor.shape[1:]) for tensor in tensors.values()),
        overall=tuple(_dimension(sum(each), variance) for each in zip(*sums.values())),
        classes=classes,
        by_class=tuple(zip(*counts)),
        variance=variance,
        examples=examples,
    )


def class_indices(labels):
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


def _dimension(moments, variance):
    """The smallest number of eigenvalues whose sum is `variance` of the sum of all."""
    eigenvalues = np.maximum(np.linalg.eigvalsh(moments)[::-1], 0)
    held = np.concatenate([[0], np.cumsum(eigenvalues)])
    return int(np.searchsorted(held, variance * held[-1]))


def _sum_moments(extractor, names, batches):
    """For each class the sums of `phi phi^T`, layer by layer, and the number of all examples."""
    sums, examples, size = {}, 0, 0
    for inputs, labels in batches:
        size = max(size, len(labels))
        # Some activations make zeros of NaN: the inputs are checked, too.
        for array in keras.tree.flatten(inputs):
            _check_finite("inputs", ops.convert_to_numpy(array))
        activations = _activations(extractor, inputs, len(labels), size)
        for name, phi in zip(names, activations):
            _check_finite(f"activations of the layer '{name}'", phi)
        for label in np.unique(labels).tolist():
            if label not in sums:
                sums[label] = [np.zeros((phi.shape[1],) * 2) for phi in activations]
            for total, phi in zip(sums[label], activations):
                total += phi[labels == label].T @ phi[labels == label]
        examples += len(labels)
    return sums, examples


def _check_finite(what, array):
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(
            "Inputs and activations must be finite to have a covariance; look for NaN in the data "
            f"and the weights. Received: {what} with NaN or infinity"
        )


def _activations(extractor, inputs, count, size):
    """What the layers return for a batch, as one row of float64 for each example."""

    def infer(model, inputs):
        return model(inputs, training=False)

    outputs = call_compiled(extractor, "activations", infer, padded(inputs, size))
    arrays = [ops.convert_to_numpy(each)[:count] for each in keras.tree.flatten(outputs)]
    return [array.reshape(count, -1).astype("float64") for array in arrays]


def _labelled_batches(data, per_class, batch_size):
    """Pairs of inputs and classes. Unless `per_class`, all examples are of class 0."""
    arrays = isinstance(data, tuple) and len(data) == 2
    x, y = data if arrays else (data, None)
    if per_class:
        if y is None and (arrays or hasattr(x, "dtype")):
            raise ValueError(
                "Labels are needed to tell the classes apart; pass arrays as `data=(x, y)`, or "
                f"per_class=False. Received: data of type {type(data).__name__} without labels"
            )
        batches, _ = batches_of(x, y, batch_size)
        return ((inputs, class_indices(labels)) for inputs, labels in batches)
    if arrays or hasattr(x, "dtype") or isinstance(x, dict):
        return batches_of(x, _class_zero(x), batch_size)[0]
    batches = map(x.__getitem__, range(len(x))) if isinstance(x, keras.utils.PyDataset) else x
    inputs = (batch[0] if isinstance(batch, (list, tuple)) else batch for batch in batches)
    return ((each, _class_zero(each)) for each in inputs)


def _class_zero(inputs):
    return np.zeros(len(keras.tree.flatten(inputs)[0]), "int64")


def _output_tensors(model, layers):
    """The outputs of layers in the graph of the model, by name."""
    calls = {}
    for node in calls_in_order(model):
        if isinstance(node.operation, keras.layers.Layer):
            calls.setdefault(node.operation.name, []).append(node)
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


def _hidden_layers(model, calls):
    """The names of the layers with kernels whose output is not the model's."""
    final = {id(tensor) for tensor in model.outputs}
    return [
        name
        for name, nodes in calls.items()
        if layer_kernels(nodes[0].operation)
        and not final.intersection(id(tensor) for node in nodes for tensor in node.outputs)
    ]


def _single_output(name, nodes):
    if len(nodes) > 1 or len(nodes[0].outputs) != 1:
        raise ValueError(
            "A layer must be called once, and return one tensor, for its activations to be "
            f"measured; choose other layers with `layers`. Received: layer '{name}', called "
            f"{len(nodes)} times, which returns {len(nodes[0].outputs)} tensors"
        )
    tensor = nodes[0].outputs[0]
    shape = tensor.shape[1:]
    if None in shape or math.prod(shape) > MAX_FEATURES:
        raise ValueError(
            f"Activations must have a fixed size of at most {MAX_FEATURES} features, because the "
            "memory grows with its square; pool them first, and choose the pooled layer with "
            f"`layers`. Received: layer '{name}' with activations of shape {tuple(shape)}"
        )
    return tensor

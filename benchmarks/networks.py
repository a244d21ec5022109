"""The networks that the benchmarks train, and the ways to change their hidden layers."""

import collections.abc
import dataclasses

import keras
import numpy as np

import keras_parseval as kp
from benchmarks.timing import interleave, ratios

JIT_COMPILE = keras.backend.backend() != "torch"


def multilayer(hidden, units, inputs=1024):
    """A fully connected network; 4 x 2048 on 32 x 32 pixels is the paper's."""
    layers = [keras.layers.Dense(units, activation="relu") for _ in range(hidden)]
    return keras.Sequential([keras.Input((inputs,)), *layers, keras.layers.Dense(10)])


def small_convnet():
    """The network of Keras's first example, on images of 32 x 32 x 3."""
    layers = [
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10),
    ]
    return keras.Sequential([keras.Input((32, 32, 3)), *layers])


def wide_resnet():
    """The paper's network for SVHN, as it is without any of ours: WRN-16-4."""
    return kp.models.wide_resnet(16, 4, variant="vanilla", weight_decay=0.0)


def transformer(width=256, heads=4, tokens=64, blocks=2):
    """An encoder of sequences of vectors, with a mean over them at its end."""
    inputs = keras.Input((tokens, 64))
    x = keras.layers.Dense(width)(inputs)
    for _ in range(blocks):
        attended = keras.layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attended]))
        hidden = keras.layers.Dense(4 * width, activation="relu")(x)
        x = keras.layers.Add()([x, keras.layers.Dense(width)(hidden)])
        x = keras.layers.LayerNormalization()(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def with_hidden_layers(model, change):
    """A copy of the model, in which `change` has made each hidden layer with a kernel anew.

    Args:
        model: A functional or Sequential model.
        change: Function from the class of a layer and its configuration, with a tight frame to
            start from, to a layer.
    """
    hidden = [layer for layer in model.layers if hasattr(layer, "kernel")][:-1]

    def clone(layer):
        config = layer.get_config()
        if layer not in hidden:
            return type(layer).from_config(config)
        return change(type(layer), config | {"kernel_initializer": kp.TightFrame(seed=0)})

    return keras.models.clone_model(model, clone_function=clone)


def with_convex_add(model):
    """A copy of the model that merges its branches with `kp.ConvexAdd`."""

    def clone(layer):
        merges = isinstance(layer, keras.layers.Add)
        return (kp.ConvexAdd if merges else type(layer)).from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=clone)


def compiled(model, learning_rate=0.01, momentum=0.9):
    """The model, ready for `fit`, with XLA where Keras has it."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(learning_rate, momentum)
    model.compile(optimizer, loss, jit_compile=JIT_COMPILE)
    return model


@dataclasses.dataclass
class TrainingStep:
    """A benchmark of the training step of one network: what they have in common."""

    name: str
    network: collections.abc.Callable
    batch: int
    batches: int
    rounds: int

    @property
    def title(self):
        return f"A training step of {self.name} with XLA"


def compare_fits(models, batch, batches, rounds):
    """The time of a training step of each model, beside that of the one that is called "plain"."""
    data = examples(models["plain"], batch * batches)

    def fit(model):
        return lambda: model.fit(*data, batch_size=batch, shuffle=False, verbose=0)

    times = interleave({name: fit(model) for name, model in models.items()}, rounds)
    rows = ratios(times, "plain")
    for row in rows:
        row["ms"] = round(row["ms"] / batches, 2)
    return rows


def examples(model, count):
    """Random inputs and labels: what they show makes no difference to the time."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(count, *model.input_shape[1:])).astype("float32")
    return x, rng.integers(0, 10, size=count)

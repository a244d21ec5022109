"""What the default constraint holds in training: `python tests/default_strength.py [SEEDS]`.

Small residual networks for the digits train for 8 epochs from tight frames, by several optimizers
at constant rates: with the default, and with one gentle step after each update (`beta=0.1`).
Prints the extreme singular values at the end, divided by their target, the smallest coefficient of
a `ConvexAdd`, divided by its floor, and the mean accuracy. Extremes are over all layers and seeds.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parent.parent))

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_parseval as kp

L = keras.layers
OPTIMIZERS = {
    "SGD 0.1, momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adam 1e-3": lambda: keras.optimizers.Adam(1e-3),
    "Adam 1e-2": lambda: keras.optimizers.Adam(1e-2),
    "AdamW 1e-3": lambda: keras.optimizers.AdamW(1e-3),
    "Lion 1e-4": lambda: keras.optimizers.Lion(1e-4),
}
if hasattr(keras.optimizers, "Muon"):
    OPTIMIZERS["Muon 1e-2"] = lambda: keras.optimizers.Muon(1e-2)
STRENGTHS = {"default": {}, "gentle": {"beta": 0.1}}


def dense(frame):
    """Four Dense layers, all but the first beside the identity."""
    inputs = keras.Input((8, 8, 1))
    x = L.Dense(128, "relu", **frame)(L.Flatten()(inputs))
    for _ in range(3):
        x = kp.ConvexAdd()([L.Dense(128, "relu", **frame)(x), x])
    return keras.Model(inputs, x)


def convolutional(frame):
    """Four convolutions, all but the first beside the identity."""
    frame = {"padding": "same", "activation": "relu", **frame}
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(32, 3, **frame)(inputs)
    for _ in range(3):
        x = kp.ConvexAdd()([L.Conv2D(32, 3, **frame)(x), x])
    return keras.Model(inputs, L.Flatten()(x))


NETWORKS = {"dense": dense, "convolutional": convolutional}


def digits():
    """Images and labels for training, then for a test."""
    data = load_digits()
    images = data.images[..., None].astype("float32") / 16
    parts = train_test_split(images, data.target.astype("int32"), test_size=1 / 3, random_state=0)
    x_train, x_test, y_train, y_test = parts
    return (x_train, y_train), (x_test, y_test)


def train(features, optimizer, data, epochs=8):
    """The network that a classifier makes of these features, trained."""
    model = keras.Sequential([features, L.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(*data, epochs=epochs, batch_size=32, verbose=0)
    return model


def measure(features):
    """The extreme singular values and the smallest coefficient, relative to what they should be."""
    values = np.concatenate([*kp.singular_values(features, relative=True).values()])
    sums = [each for each in features.layers if isinstance(each, kp.ConvexAdd)]
    floors = [each.floor / each.coefficients.shape[0] for each in sums]
    smallest = [keras.ops.convert_to_numpy(each.coefficients).min() for each in sums]
    return values.min(), values.max(), np.min(np.divide(smallest, floors))


def main(seeds):
    data, test = digits()
    print("network, optimizer              strength  values          coefficient  accuracy")
    for network, build in NETWORKS.items():
        for name, optimizer in OPTIMIZERS.items():
            for strength, options in STRENGTHS.items():
                measures, accuracies = [], []
                for seed in range(seeds):
                    keras.utils.set_random_seed(seed)
                    features = build(kp.tight_frame(**options))
                    model = train(features, optimizer(), data)
                    measures.append(measure(features))
                    accuracies.append(model.evaluate(*test, batch_size=600, verbose=0)[1])
                lows, highs, coefficients = zip(*measures)
                print(
                    f"{network + ', ' + name:32}{strength:10}{min(lows):.3f} to {max(highs):.3f}  "
                    f"{min(coefficients):11.3f}  {np.mean(accuracies):.2%} +- "
                    f"{np.std(accuracies) / max(1, seeds - 1) ** 0.5:.2%}",
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

"""How tight kernels are after a real training, and what it costs in accuracy."""

import dataclasses

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import networks
from benchmarks.constraint import OURS

EPOCHS, BATCH = 60, 64
OPTIMIZERS = {
    "SGD": lambda steps: keras.optimizers.SGD(_falling(0.3, steps)),
    "Adam": lambda steps: keras.optimizers.Adam(_falling(1e-3, steps)),
}


@dataclasses.dataclass
class Trained:
    """A fully connected network on the digits, to its final accuracy, by each constraint.

    The rate falls to zero. Singular values are those of all hidden layers together.
    """

    hidden: int
    units: int
    optimizer: str

    @property
    def title(self):
        network = f"MLP {self.hidden} x {self.units}"
        return f"Singular values of an {network} trained on the digits by {self.optimizer}"

    def run(self):
        train, test = digits()
        base = networks.multilayer(self.hidden, self.units, inputs=64)
        return [self._row(name, base, change, train, test) for name, change in OURS.items()]

    def _row(self, contestant, base, change, train, test):
        keras.utils.set_random_seed(0)
        model = networks.with_hidden_layers(base, change)
        steps = EPOCHS * -(-len(train[1]) // BATCH)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = OPTIMIZERS[self.optimizer](steps)
        model.compile(optimizer, loss, jit_compile=networks.JIT_COMPILE)
        largest = []

        def remember(epoch, logs):
            if epoch % 3 == 0:
                largest.append(max(map(np.max, _values(model))))

        watch = keras.callbacks.LambdaCallback(on_epoch_end=remember)
        model.fit(*train, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[watch])
        values = np.concatenate(_values(model))
        correct = model.predict(test[0], verbose=0).argmax(axis=-1) == test[1]
        return {
            "contestant": contestant,
            "accuracy": f"{100 * correct.mean():.1f}%",
            "smallest": round(float(values.min()), 3),
            "largest": round(float(values.max()), 3),
            "largest on the way": round(float(max(largest)), 3),
        }


def _falling(rate, steps):
    return keras.optimizers.schedules.CosineDecay(rate, steps)


def _values(model):
    """The singular values of each hidden kernel."""
    layers = [layer for layer in model.layers if hasattr(layer, "kernel")]
    return [kp.singular_values(layer, relative=True) for layer in layers[:-1]]


def digits():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    x, y = (data.data / 16).astype("float32"), data.target.astype("int32")
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=1 / 3, random_state=0)
    return (x_train, y_train), (x_test, y_test)


BENCHMARKS = {
    "trained_mlp_128": Trained(3, 128, "SGD"),
    "trained_mlp_1024": Trained(3, 1024, "SGD"),
    "trained_mlp_1024_adam": Trained(3, 1024, "Adam"),
}

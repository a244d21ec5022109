"""
Title: Constrain your own model
Description: Two arguments, a merge layer and an activation turn a small residual network Parseval.

Run it with `python examples/constrain_your_model.py`; about a minute on two cores. The environment
variable `EPOCHS` makes it shorter.
"""

"""
## The network as it was

A small convolutional network with a residual block, for the digits that come with scikit-learn.
"""

import os

import console  # before Keras, to keep TensorFlow's start-up log away
import keras
from data import load

import keras_parseval as kp

epochs = int(os.environ.get("EPOCHS", 15))
digits = load("digits")
(train_x, train_y), validation, test = digits.train_pixels(), digits.validation, digits.test


def plain_network():
    inputs = keras.Input(digits.input_shape)
    x = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    branch = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = keras.layers.Add()([branch, x])
    x = keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


"""
## The network as it becomes

Each hidden kernel gets the constraint, and starts where the constraint will hold it: both come from
`kp.tight_frame`, as `kernel_constraint` and `kernel_initializer`. A kernel with strides covers each
input less often, and may be larger: that is the `scale`. The sum of
the block becomes a convex one, whose coefficients are learned, and `MaxMin` takes the place of the
ReLU, which would throw away half of what the kernels keep. The classifier stays free, with
weight decay.
"""


def parseval_network():
    inputs = keras.Input(digits.input_shape)
    x = kp.MaxMin()(keras.layers.Conv2D(16, 3, padding="same", **kp.tight_frame())(inputs))
    branch = kp.MaxMin()(keras.layers.Conv2D(16, 3, padding="same", **kp.tight_frame())(x))
    x = kp.ConvexAdd(name="sum")([branch, x])
    frame = kp.tight_frame(scale=0.5)
    x = kp.MaxMin()(keras.layers.Conv2D(32, 3, strides=2, padding="same", **frame)(x))
    x = keras.layers.Flatten()(x)
    decay = keras.regularizers.L2(5e-4)
    return keras.Model(inputs, keras.layers.Dense(10, kernel_regularizer=decay)(x))


"""
## Training is what it was
"""

models = {"plain": plain_network(), "Parseval": parseval_network()}
for name, model in models.items():
    rate = keras.optimizers.schedules.CosineDecay(0.05, epochs * digits.steps(32))
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=keras.backend.backend() != "torch",
    )
    callbacks = [kp.SpectrumLogger(), console.Progress(name)]
    options = {"batch_size": 32, "epochs": epochs, "verbose": 0}
    model.fit(train_x, train_y, validation_data=validation, callbacks=callbacks, **options)

coefficients = keras.ops.convert_to_numpy(models["Parseval"].get_layer("sum").coefficients)
print(f"Coefficients of the convex sum, branch and shortcut: {coefficients.round(3)}")

"""
## The claim, and what was measured

Every hidden layer of the Parseval network is tight, and so the network up to its classifier does
not amplify any change of its input.
"""

measured = {}
print(f"\n{'':10}{'accuracy':>10}{'worst tightness':>18}{'bound below classifier':>25}")
for name, model in models.items():
    _, accuracy = model.evaluate(*test, verbose=0)
    below = kp.lipschitz_bound(model).entries[-2].accumulated
    print(f"{name:10}{accuracy:10.3f}{kp.tightness(model):18.4f}{below:25.2f}")
    measured[name] = accuracy, below

(accuracy, below), (plain_accuracy, plain_below) = measured["Parseval"], measured["plain"]
print(
    "\nClaim: up to its classifier the Parseval network amplifies no change of its input.\n"
    f"Measured: Lipschitz bound up to the classifier {below:.2f}, plain {plain_below:.0f}; "
    f"accuracy {accuracy:.3f}, plain {plain_accuracy:.3f}."
)

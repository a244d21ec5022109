"""Training on adversarial examples, inside `fit`."""

import keras
import numpy as np
from keras import ops

from keras_parseval._attack_checks import check_inputs, check_labels_given
from keras_parseval._backend import (
    attack_outside_xla,
    keep_weights_on_error,
    wrap_train_step,
)
from keras_parseval._validation import check_integer, check_number
from keras_parseval.attacks import FGSM, GradientAttack
from keras_parseval.classifier import Classifier


class AdversarialTraining(keras.callbacks.Callback):
    """Replaces a part of every minibatch by adversarial versions of itself.

    The examples are crafted from the current weights, in the same compiled
    step that trains on them. By default they are crafted as in the paper: half of the batch, by
    one step of the fast gradient sign method, against the predicted labels, of
    a magnitude drawn anew for each minibatch from the absolute value of
    a normal distribution, cut at two standard deviations.

    Crafting runs the model in inference mode and changes neither weights nor
    batch statistics nor metrics. The logs remain the model's own, on the mixed
    batch; validation data is not attacked. After `fit`, also one that was
    interrupted, the model trains as it did before.

    The first examples of each batch are the ones replaced: shuffle the
    data, as `fit` does with arrays. Under `tf.distribute`, each replica replaces the first
    examples of its own part of the batch; magnitudes are the same on all.

    Args:
        attack: `None`, or a `kp.FGSM` or `kp.IteratedFGSM` to craft with.
        ratio: Fraction of each minibatch to replace, in (0, 1], rounded to a whole number of
            examples, at least one.
        stddev: Standard deviation of the magnitude without `attack`, in the
            units of the model's input. By default 2/255, for pixels in [0, 1].
        bounds: Smallest and largest value of an input, `(low, high)`, without `attack`. That
            the training data lies between is not checked.
        perturb: For a model with several inputs, the key or index of the one to
            perturb, without `attack`.
        start_epoch: The first epoch (from 0) that is attacked.
        seed: Integer. Magnitudes and random starts follow from it and from the
            number of the optimizer's step, so that a run that is resumed repeats them.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    model.fit(x, y, callbacks=[kp.AdversarialTraining(bounds=(0, 1))], verbose=0)
    ```
    """

    def __init__(
        self,
        attack=None,
        ratio=0.5,
        stddev=None,
        bounds=None,
        perturb=None,
        start_epoch=0,
        seed=0,
    ):
        super().__init__()
        self.ratio = check_number(
            "ratio", ratio, "a number in the interval (0, 1]", lambda value: 0 < value <= 1
        )
        self.start_epoch = check_integer(
            "start_epoch", start_epoch, "an integer, 0 or more", lambda value: value >= 0
        )
        self.seed = check_integer("seed", seed, "an integer, 0 or more", lambda value: value >= 0)
        self.attack = _check_attack(attack, stddev, bounds, perturb)
        self.stddev = None
        if attack is None:
            self.stddev = check_number(
                "stddev",
                2 / 255 if stddev is None else stddev,
                "a positive number, in the units of the model's input",
                lambda value: value > 0,
            )
        self._attacked_function = self._plain_function = None
        self._epoch = 0

    def on_train_begin(self, logs=None):
        # All that can be wrong with the model is found out before it is trained.
        Classifier(self.model, self.attack.loss)
        # Unless it is compiled anew, a model keeps its function from one fit to the next.
        if self.model.train_function is not self._plain_function:
            self._attacked_function, self._plain_function = None, self.model.train_function

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self._epoch < self.start_epoch:
            return
        self._check_alone()
        if self.model.train_function not in (self._plain_function, self._attacked_function):
            # Another callback has compiled the model anew.
            self._attacked_function, self._plain_function = None, self.model.train_function
        if self._attacked_function is None:
            self._attacked_function = self._find_attacked_function()
        self.model.train_function = self._attacked_function
        # A fit that is interrupted calls no callback. But the next one begins with this call.
        self.model.make_train_function = self._heal

    def on_train_end(self, logs=None):
        self._restore()

    def _check_alone(self):
        hook = vars(self.model).get("make_train_function")
        if hook is not None and hook != self._heal:
            raise ValueError(
                "A model can be trained by one `AdversarialTraining` at a time; leave the other "
                f"out of the callbacks. Received: {hook.__self__} beside {self}"
            )

    def _restore(self):
        if self.model.train_function is self._attacked_function:
            self.model.train_function = self._plain_function
        vars(self.model).pop("make_train_function", None)

    def _heal(self, force=False):
        self._restore()
        return self.model.make_train_function(force=force)

    def _find_attacked_function(self):
        """Compiled once for all callbacks with the same settings.

        It is kept with the plain function, and gone with it when the model is compiled anew.
        """
        functions = vars(self._plain_function).setdefault("attacked_functions", {})
        arrays = [(np.shape(each), np.asarray(each).tobytes()) for each in self._arrays()]
        settings = (self.ratio, self.stddev, self.seed, *arrays)
        key = (self.attack.static_key(self.model), settings)
        if key not in functions:
            functions[key] = self._make_attacked_function()
        return functions[key]

    def _arrays(self):
        """What the compiled attack holds as constants."""
        return [each for each in (self.attack.epsilon, self.attack.mask) if each is not None]

    def _make_attacked_function(self):
        model = self.model
        attacked_step = wrap_train_step(model, self._attack_batch())
        with _train_step(model, attacked_step), attack_outside_xla(model):
            model.make_train_function(force=True)
        train_function = keep_weights_on_error(model, model.train_function)
        model.train_function = self._plain_function

        def attacked_function(*args):
            # Backends look the step up when they trace it, or each time.
            with _train_step(model, attacked_step):
                return train_function(*args)

        return attacked_function

    def _attack_batch(self):
        classifier = Classifier(self.model, self.attack.loss)
        seed = _StepSeed(self.seed, self.model.optimizer)

        def attack_batch(data):
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            check_inputs(self.attack, x)
            check_labels_given(self.attack, y)
            head, tail = _split(x, self.ratio)
            labels = None if y is None else _split(y, self.ratio)[0]
            crafted = self.attack.craft(
                classifier, head, labels, epsilon=self._epsilon(seed), seed=seed
            )
            x = keras.tree.map_structure(lambda *parts: ops.concatenate(parts), crafted, tail)
            return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

        return attack_batch

    def _epsilon(self, seed):
        if self.stddev is None:
            return ops.convert_to_tensor(np.asarray(self.attack.epsilon, "float32"))
        return draw_magnitude(self.stddev, seed)


def draw_magnitude(stddev, seed):
    """The absolute value of a normal variable, cut at two standard deviations."""
    return ops.abs(keras.random.truncated_normal((), stddev=stddev, seed=seed))


class _StepSeed(keras.random.SeedGenerator):
    """A seed for each step of an optimizer, that follows from the step's number alone."""

    def __init__(self, seed, optimizer):
        super().__init__(seed)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        # Counts every minibatch, where `iterations` counts those that gradients accumulate over
        # as one.
        self.counter = optimizer.variables[0]

    def next(self, ordered=True):
        step = ops.cast(ops.convert_to_tensor(self.counter), self.state.dtype)
        first, second = ops.unstack(ops.convert_to_tensor(self.state), 2)
        return ops.stack([first, second + step])


class _train_step:
    """Within this context, the model has another training step."""

    def __init__(self, model, step):
        self.model, self.step = model, step

    def __enter__(self):
        self.own = vars(self.model).get("train_step")
        self.model.train_step = self.step

    def __exit__(self, *exception):
        del self.model.train_step
        if self.own is not None:
            self.model.train_step = self.own


def _split(tensors, ratio):
    """The first part of a batch, and the rest."""
    count = ops.shape(keras.tree.flatten(tensors)[0])[0]
    if isinstance(count, int):
        part = max(1, int(ratio * count + 0.5))
    else:
        part = ops.cast(ops.floor(ratio * ops.cast(count, "float32") + 0.5), "int32")
        part = ops.maximum(part, 1)
    head = keras.tree.map_structure(lambda tensor: tensor[:part], tensors)
    return head, keras.tree.map_structure(lambda tensor: tensor[part:], tensors)


def _check_attack(attack, stddev, bounds, perturb):
    if attack is None:
        return FGSM(0.0, bounds=bounds, perturb=perturb)
    if not isinstance(attack, GradientAttack):
        raise TypeError(
            "`attack` must be None, or an `FGSM` or `IteratedFGSM`, such as `FGSM(8 / 255)`. "
            f"Received: attack={attack!r}"
        )
    given = {"stddev": stddev, "bounds": bounds, "perturb": perturb}
    given = [name for name, value in given.items() if value is not None]
    if given:
        raise ValueError(
            "An `attack` brings its own epsilon, bounds and input to perturb; leave out "
            f"{', '.join(given)}, or the attack. Received: attack={attack!r}"
        )
    if np.ndim(attack.epsilon) > (attack.norm == "inf"):
        raise ValueError(
            'The epsilon of an attack to train with must be a number or, with norm="inf", one '
            f"for each channel. Received: epsilon of shape {np.shape(attack.epsilon)}"
        )
    return attack

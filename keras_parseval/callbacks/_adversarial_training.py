"""Training on adversarial examples, inside `fit`."""

from collections.abc import Callable, Hashable
from typing import Any

import keras
import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from keras_parseval._keras_internals import minibatch_counter
from keras_parseval._sampling import fingerprint
from keras_parseval._seed import Seed
from keras_parseval._validation import check_integer, check_number
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._fgsm import check_attack
from keras_parseval.attacks._inputs import check_inputs
from keras_parseval.attacks._levels import check_epsilon
from keras_parseval.callbacks._train_function import TrainFunctionSwap


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
        attack: The attack to craft with. Unless it says otherwise, it uses the
            predicted labels, so that no true label leaks into the examples. Give it `bounds`
            if inputs have them; that the training data lies between is not checked.
            Defaults to `kp.FGSM()`.
        epsilon: Size of the perturbation, in the units of the model's input and in the
            norm of the attack: a number or, with `norm="inf"`, one for each channel. `None`
            stands for a magnitude that is drawn for each minibatch. Defaults to `None`.
        stddev: Standard deviation of that magnitude, in the same units. Defaults to 2/255,
            which is the paper's for pixels in [0, 1] and the inf-norm; it is next to nothing in
            the 2-norm.
        ratio: Fraction of each minibatch to replace, in (0, 1], rounded to a whole number of
            examples, at least one. Defaults to 0.5.
        start_from_epoch: The first epoch (from 0) that is attacked. Defaults to 0.
        seed: Integer. Magnitudes and random starts follow from it and from the
            number of the optimizer's step, so that a run that is resumed repeats them. For a
            model with a `train_step` of its own they follow from its weights as well.
            Defaults to 0.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    attack = kp.FGSM(bounds=(0, 1))
    model.fit(x, y, callbacks=[kp.AdversarialTraining(attack, epsilon=0.1)], verbose=0)
    ```
    """

    def __init__(
        self,
        attack: Attack | None = None,
        *,
        epsilon: ArrayLike | None = None,
        stddev: float | None = None,
        ratio: float = 0.5,
        start_from_epoch: int = 0,
        seed: int = 0,
    ):
        super().__init__()
        self.attack = check_attack(attack).with_labels("predicted")
        self.epsilon = _check_epsilon(epsilon, stddev, self.attack)
        self.stddev = check_number(
            "stddev",
            2 / 255 if stddev is None else stddev,
            "a positive number, in the units of the model's input",
            lambda value: value > 0,
        )
        self.ratio = check_number(
            "ratio", ratio, "a number in the interval (0, 1]", lambda value: 0 < value <= 1
        )
        self.start_from_epoch = check_integer(
            "start_from_epoch", start_from_epoch, "an integer, 0 or more", lambda value: value >= 0
        )
        self.seed = check_integer("seed", seed, "an integer, 0 or more", lambda value: value >= 0)
        self._epoch = 0
        self._swap: TrainFunctionSwap | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out all that can be wrong with the model before it is trained."""
        self.attack.classifier(self.model).check_probabilities()
        self._swap = TrainFunctionSwap(self.model, self)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the number of the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Let the model train on this batch after the attack has changed it."""
        if self._epoch >= self.start_from_epoch and self._swap is not None:
            self._swap.swap(self._settings, self._attack_batch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Let the model train as it did before."""
        if self._swap is not None:
            self._swap.restore()

    def _settings(self) -> Hashable:
        """Everything that the compiled attack depends on."""
        arrays = [
            (np.shape(each), np.asarray(each).tobytes())
            for each in (self.epsilon, self.attack.mask)
            if each is not None
        ]
        magnitude = self.stddev if self.epsilon is None else None
        return self.attack.static_key(self.model), self.ratio, magnitude, self.seed, *arrays

    def _attack_batch(self) -> Callable[[Any], Any]:
        # Asked for once: on JAX, a callback that asks for its model ends the step.
        model = self.model
        classifier = self.attack.classifier(model)

        def attack_batch(data: Any) -> Any:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            check_inputs(self.attack, x)
            if self.attack.labels == "true" and y is None:
                raise ValueError(
                    'An attack with labels="true" must be given the labels; train with `y`, or '
                    'use labels="predicted". Received: y=None'
                )
            head, tail = _split(x, self.ratio)
            seed = Seed(self.seed, _number_of_step(model))
            tensors = {"x": head, "epsilon": self._draw_epsilon(seed)}
            if y is not None:
                tensors["y"] = _split(y, self.ratio)[0]
            if self.attack.mask is not None:
                tensors["mask"] = self.attack.mask
            crafted = self.attack.problem(classifier, tensors, seed).solution()
            x = keras.tree.map_structure(lambda *parts: ops.concatenate(parts), crafted, tail)
            return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

        return attack_batch

    def _draw_epsilon(self, seed: Seed) -> Any:
        if self.epsilon is not None:
            return ops.convert_to_tensor(self.epsilon)
        return draw_magnitude(self.stddev, seed)


def _number_of_step(model: Any) -> Any:
    """A number that changes from step to step, and is the same again when a run is resumed."""
    counter = minibatch_counter(model.optimizer)
    if type(model).train_step is keras.Model.train_step:
        return counter
    # A step of one's own may have optimizers of its own, and leave the model's at zero. But the
    # weights change, on all replicas alike.
    values = [ops.reshape(ops.convert_to_tensor(each), (-1,)) for each in model.trainable_variables]
    probes = [ops.cast(each[:: max(1, each.shape[0] // 8)], "float32") for each in values]
    return ops.cast(ops.convert_to_tensor(counter), "int32") + sum(
        fingerprint(ops.concatenate(probes))
    )


def draw_magnitude(stddev: float, seed: Seed) -> Any:
    """The absolute value of a normal variable, cut at two standard deviations."""
    return ops.abs(keras.random.truncated_normal((), stddev=stddev, seed=seed))


def _split(tensors: Any, ratio: float) -> tuple[Any, Any]:
    """The first part of a batch, and the rest."""
    count = ops.shape(keras.tree.flatten(tensors)[0])[0]
    if isinstance(count, int):
        part: Any = max(1, int(ratio * count + 0.5))
    else:
        part = ops.cast(ops.floor(ratio * ops.cast(count, "float32") + 0.5), "int32")
        part = ops.maximum(part, 1)
    head = keras.tree.map_structure(lambda tensor: tensor[:part], tensors)
    return head, keras.tree.map_structure(lambda tensor: tensor[part:], tensors)


def _check_epsilon(epsilon: Any, stddev: Any, attack: Attack) -> np.ndarray | None:
    if epsilon is None:
        return None
    if stddev is not None:
        raise ValueError(
            "Training must be told the size of its perturbations by `epsilon`, for one that is "
            "fixed, or by `stddev`, for one that is drawn, and not by both. "
            f"Received: epsilon={epsilon!r}, stddev={stddev!r}"
        )
    sizes = check_epsilon(epsilon)
    if sizes.ndim > (attack.norm == "inf"):
        raise ValueError(
            'The epsilon to train with must be a number or, with norm="inf", one '
            f"for each channel. Received: epsilon of shape {sizes.shape}"
        )
    return sizes

"""Attacks on classifiers: one loop up the gradient of the loss, geometry per norm."""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from keras_parseval._attack_checks import (
    align_epsilon,
    check_attack,
    check_data,
    check_labels,
    check_labels_given,
    not_a_number,
)
from keras_parseval._backend import call_compiled, input_gradient, no_gradient
from keras_parseval._geometry import GEOMETRIES
from keras_parseval._validation import check_flag, check_integer, check_number
from keras_parseval.classifier import Classifier, compiled_loss


class GradientAttack:
    """What FGSM and its iterated form share. See `FGSM` for the arguments."""

    def __call__(self, model, x, y=None):
        """Craft adversarial versions of a batch.

        Args:
            model: A compiled Keras classifier; it is left exactly as it is.
            x: The inputs, one batch: arrays or tensors, as the model takes them.
            y: The labels; needed if the attack uses the true ones.

        Returns:
            A tensor like `x`, or the same structure of tensors for several inputs.
        """
        check_labels_given(self, y)
        if not model.built:
            model(x)
        clean = check_data(self, x)
        if self.labels == "true":
            check_labels(model, self.loss, y, len(clean))
        tensors = {"x": x, "epsilon": align_epsilon(self.epsilon, clean.shape, self.norm)}
        if self.labels == "true":
            tensors["y"] = y
        if self.mask is not None:
            tensors["mask"] = self.mask
        crafted = call_compiled(model, self.static_key(model), self._craft_tensors, tensors)
        moved = ops.convert_to_numpy(self.select(crafted))
        if not np.isfinite(moved).all():
            raise not_a_number(model)
        if np.any(self.epsilon) and (moved == clean).all():
            raise no_gradient()
        return crafted

    def _craft_tensors(self, model, tensors):
        return self.craft(
            Classifier(model, self.loss),
            tensors["x"],
            tensors.get("y"),
            epsilon=tensors["epsilon"],
            mask=tensors.get("mask"),
        )

    def static_key(self, model):
        """Everything that a compiled attack depends on, save the tensors."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["loss"] = compiled_loss(model) if self.loss is None else self.loss
        del fields["epsilon"], fields["mask"]
        return type(self), tuple(fields.items())

    def craft(self, classifier, inputs, y=None, *, epsilon=None, mask=None, seed=None):
        """The attack on tensors, for use inside compiled code.

        Args:
            classifier: A `Classifier`.
            inputs: The batch, as the model takes it.
            y: The labels, where `labels="true"`.
            epsilon: Replaces the attack's own; broadcasts to the perturbed input.
            mask: Replaces the attack's own.
            seed: Seed of the random start, in place of the attack's own.
        """
        x = self.select(inputs)
        epsilon = ops.cast(self.epsilon if epsilon is None else epsilon, x.dtype)
        mask = self.mask if mask is None else mask
        geometry, steps = GEOMETRIES[self.norm], self.steps
        step_size = ops.cast(self.one_step(epsilon), x.dtype)

        if self.random_start:
            labels = self._choose_labels(classifier, classifier.outputs(inputs), y)
            seed = self.seed if seed is None else seed
            delta = _masked(geometry.random(x, epsilon, seed), mask)
        else:
            direction, labels, _ = self.ascend(classifier, inputs, y, mask=mask)
            delta = geometry.project(step_size * direction, epsilon)
            steps -= 1

        def step(_, delta):
            moved = self.replace(inputs, self.limit(x, delta))
            direction, _, _ = self.ascend(classifier, moved, labels=labels, mask=mask)
            return geometry.project(delta + step_size * direction, epsilon)

        if steps:
            delta = ops.fori_loop(0, steps, step, delta)
        return self.replace(inputs, self.limit(x, delta))

    def ascend(self, classifier, inputs, y=None, *, labels=None, mask=None):
        """The direction that raises the loss, the labels it is a loss for, and the outputs."""

        def objective(x):
            outputs = classifier.outputs(self.replace(inputs, x))
            chosen = labels
            if chosen is None:
                chosen = ops.stop_gradient(self._choose_labels(classifier, outputs, y))
            return classifier.total_loss(chosen, outputs), (chosen, outputs)

        gradient, (labels, outputs) = input_gradient(objective, self.select(inputs))
        # The least likely class is a target: its loss goes down.
        gradient = -gradient if self.labels == "least_likely" else gradient
        return GEOMETRIES[self.norm].direction(_masked(gradient, mask)), labels, outputs

    def _choose_labels(self, classifier, outputs, y):
        if self.labels == "true":
            return classifier.true_labels(y, outputs)
        if self.labels == "least_likely":
            return classifier.least_likely_labels(outputs)
        return classifier.predicted_labels(outputs)

    def limit(self, x, delta):
        """`x + delta` within the bounds; a feature outside them does not go further out."""
        if self.bounds is None:
            return x + delta
        low, high = self.bounds
        return ops.clip(x + delta, ops.minimum(x, low), ops.maximum(x, high))

    def select(self, inputs):
        """The one input to perturb."""
        return inputs if self.perturb is None else inputs[self.perturb]

    def replace(self, inputs, x):
        """The inputs with `x` in place of the one to perturb."""
        if self.perturb is None:
            return x
        if isinstance(inputs, dict):
            return {**inputs, self.perturb: x}
        replaced = [x if index == self.perturb else each for index, each in enumerate(inputs)]
        return type(inputs)(replaced)


def _masked(tensor, mask):
    return tensor if mask is None else tensor * ops.cast(mask, tensor.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class FGSM(GradientAttack):
    """The fast gradient method: one step of size epsilon up the gradient of the loss.

    With `norm="inf"` it is the fast gradient sign method, `x + epsilon sign(g)`, and
    with `norm=2` the step `x + epsilon g / ||g||`.

    Calling the attack crafts a batch: `x_adv = attack(model, x, y)`. That is
    compiled once for each model, whatever epsilon, and changes nothing in the
    model, its metrics or any random state. The model runs in inference mode.
    A cross-entropy is raised through the logits, which are reached behind a softmax
    or sigmoid at the end of the model, and in a form whose gradient
    does not vanish where the model is sure. Label smoothing and soft labels
    make no difference: an attack is on the decision for a class.

    Args:
        epsilon: Size of the perturbation, in the units of the model's input:
            8/255 for pixels in [0, 1] is 8 for pixels in [0, 255]. A number,
            one for each example, or (with `norm="inf"`) one for each channel,
            the last axis.
        norm: `"inf"` or 2.
        labels: Whose loss to increase. `"predicted"`: that of the class the model
            predicts, which leaks nothing of the true label into training.
            `"true"`: that of the true label, which must then be given.
            `"least_likely"`: the loss of the least likely class is decreased.
        bounds: `None`, or the smallest and largest value that an input can have,
            as `(low, high)`; adversarial examples are kept between.
        mask: `None`, or an array that broadcasts to the input, 0 where a
            feature must stay as it is and 1 where it may move.
        loss: The loss to increase, if not the cross-entropy that the model was compiled with:
            any function of integer labels and the model's output.
        perturb: For a model with several inputs, the name (of a dictionary) or
            index (of a list) of the one to perturb.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    attack = kp.FGSM(epsilon=0.1, bounds=(0, 1))
    x_adv = attack(model, keras.random.uniform((16, 8)))
    ```
    """

    epsilon: Any
    norm: Any = "inf"
    labels: str = "predicted"
    bounds: Any = None
    mask: Any = None
    loss: Any = None
    perturb: Any = None

    steps = 1
    random_start = False

    def __post_init__(self):
        check_attack(self)

    def one_step(self, epsilon):
        """The size of a step."""
        return epsilon


@dataclasses.dataclass(frozen=True, eq=False)
class IteratedFGSM(GradientAttack):
    """Several smaller steps of the fast gradient method, kept within epsilon.

    After each step the perturbation is projected back onto the ball of radius
    epsilon. With `random_start=True` this is projected gradient descent (PGD).
    See `kp.FGSM` for how attacks are called, and what they leave alone.

    Args:
        epsilon: Size of the perturbation, in the units of the model's input. As in `kp.FGSM`.
        steps: Number of steps.
        step_size: Size of one step, in the units of the model's input. `None`
            stands for `2.5 * epsilon / steps`, enough to reach
            any point of the ball from any other. `kp.robust_accuracy` does
            not scale a number with its levels, but does so with `None`.
        norm: `"inf"` or 2.
        random_start: Whether to start from a random point of the ball (of its
            surface, with `norm=2`) in place of its centre.
        labels: As in `kp.FGSM`. The classes are those of the clean examples.
        bounds: As in `kp.FGSM`.
        mask: As in `kp.FGSM`.
        loss: As in `kp.FGSM`.
        perturb: As in `kp.FGSM`.
        seed: Integer seed of the random start. Calls with the same seed start
            from the same point.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    attack = kp.IteratedFGSM(epsilon=0.5, steps=20, norm=2, random_start=True)
    x_adv = attack(model, keras.random.uniform((16, 8)))
    ```
    """

    epsilon: Any
    steps: int = 10
    step_size: Any = None
    norm: Any = "inf"
    random_start: bool = False
    labels: str = "predicted"
    bounds: Any = None
    mask: Any = None
    loss: Any = None
    perturb: Any = None
    seed: int = 0

    def __post_init__(self):
        check_integer("steps", self.steps, "a positive integer", lambda value: value > 0)
        check_flag("random_start", self.random_start)
        check_integer("seed", self.seed, "an integer, 0 or more", lambda value: value >= 0)
        if self.step_size is not None:
            check_number(
                "step_size",
                self.step_size,
                "None or a positive number, in the units of the model's input",
                lambda value: value > 0,
            )
        check_attack(self)

    def one_step(self, epsilon):
        """The size of a step."""
        return 2.5 / self.steps * epsilon if self.step_size is None else self.step_size

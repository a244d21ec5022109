"""What an attack has to solve for one batch, in tensors, inside compiled code."""

from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_parseval._backend import input_gradient
from keras_parseval._classifier import Classifier
from keras_parseval._seed import Seed
from keras_parseval.attacks._geometry import GEOMETRIES

if TYPE_CHECKING:
    from keras_parseval.attacks._attack import Attack


class Problem:
    """One batch to attack: what may move, how far, and what that does to the model.

    An attack looks for a perturbation `delta` of the tensor `x`. What the model sees is
    `move(delta)`, and what is allowed is `limit(delta)`.

    Args:
        attack: The attack, for its settings; its `labels` must be settled.
        classifier: The classifier to mislead.
        inputs: The batch, as the model takes it.
        y: The true labels, as the loss takes them; needed if the attack uses them.
        epsilon: The largest perturbation; broadcasts to the input that is perturbed.
        mask: 0 where a feature must stay as it is; broadcasts likewise. Or `None`.
        seed: Seed of all that is random. By default the attack's own.

    Attributes:
        x: The tensor to perturb.
        epsilon: Epsilon, in the type of `x`.
    """

    def __init__(
        self,
        attack: "Attack",
        classifier: Classifier,
        inputs: Any,
        y: Any = None,
        *,
        epsilon: Any,
        mask: Any = None,
        seed: Seed | None = None,
    ):
        self.attack, self.classifier = attack, classifier
        self.inputs, self.y = inputs, y
        self.x = attack.select(inputs)
        self.epsilon = ops.cast(epsilon, self.x.dtype)
        self.mask = None if mask is None else ops.cast(mask, self.x.dtype)
        self.seed = Seed(getattr(attack, "seed", 0)) if seed is None else seed
        self._geometry = GEOMETRIES[attack.norm]
        self._clean_outputs = self._labels = None

    @property
    def clean_outputs(self) -> Any:
        """What the model says of the clean batch. Ask for it outside of loops."""
        if self._clean_outputs is None:
            self._clean_outputs = self.classifier.outputs(self.inputs)
        return self._clean_outputs

    @property
    def labels(self) -> Any:
        """The classes whose loss is to change. Ask for them outside of loops."""
        if self._labels is None:
            self._labels = self._choose_labels(self.clean_outputs)
        return self._labels

    def _choose_labels(self, outputs: Any) -> Any:
        if self.attack.labels == "true":
            return self.classifier.true_labels(self.y, outputs)
        if self.attack.labels == "least_likely":
            return self.classifier.least_likely_labels(outputs)
        return self.classifier.predicted_labels(outputs)

    def solution(self) -> Any:
        """The inputs with the perturbation that the attack finds."""
        return self.move(self.attack.perturbation(self))

    def outputs(self, delta: Any) -> Any:
        """What the model says of the perturbed batch."""
        return self.classifier.outputs(self.move(delta))

    def ascend(self, delta: Any = None) -> Any:
        """The direction that changes the loss fastest, for a step of size 1 in the norm.

        Args:
            delta: The perturbation to go on from; `None` for the clean batch, whose outputs and
                labels are then known as well, without another pass through the model.
        """
        labels = None if delta is None and self._labels is None else self.labels

        def objective(x: Any) -> tuple[Any, Any]:
            outputs = self.classifier.outputs(self.attack.replace(self.inputs, x))
            chosen = labels
            if chosen is None:
                chosen = ops.stop_gradient(self._choose_labels(outputs))
            return self.classifier.total_loss(chosen, outputs), (chosen, outputs)

        point = self.x if delta is None else self.attack.select(self.move(delta))
        gradient, (chosen, outputs) = input_gradient(objective, point)
        if delta is None:
            self._labels, self._clean_outputs = chosen, outputs
        # The least likely class is a target: its loss goes down.
        gradient = -gradient if self.attack.labels == "least_likely" else gradient
        return self._geometry.direction(self._masked(gradient))

    def success(self, delta: Any) -> Any:
        """For each example, how far the attack has got: the larger, the more is it misled."""
        success = self.classifier.success(self.labels, self.outputs(delta))
        return -success if self.attack.labels == "least_likely" else success

    def random(self, seed: Seed) -> Any:
        """A random perturbation: of the whole ball, or of its surface in the 2-norm."""
        return self.limit(self._masked(self._geometry.random(self.x, self.epsilon, seed)))

    def limit(self, delta: Any) -> Any:
        """The perturbation, brought back to the ball and to the bounds.

        A feature that is out of bounds from the start goes no further out.
        """
        delta = self._geometry.project(delta, self.epsilon)
        if self.attack.bounds is None:
            return delta
        low, high = self.attack.bounds
        return ops.clip(delta, ops.minimum(low - self.x, 0.0), ops.maximum(high - self.x, 0.0))

    def move(self, delta: Any) -> Any:
        """The inputs with the perturbation, which `limit` allows, added."""
        moved = self.x + delta
        if self.attack.bounds is not None:
            # Once more, because a sum is rounded.
            low, high = self.attack.bounds
            moved = ops.clip(moved, ops.minimum(self.x, low), ops.maximum(self.x, high))
        return self.attack.replace(self.inputs, moved)

    def repeated(self, count: int, epsilon: Any) -> "Problem":
        """The same batch so many times over, with an epsilon for each."""
        inputs, y = self.repeat((self.inputs, self.y), count)
        mask = self.mask
        if mask is not None and len(mask.shape) == len(self.x.shape) and mask.shape[0] != 1:
            mask = self.repeat(mask, count)
        options = {"epsilon": epsilon, "mask": mask, "seed": self.seed}
        return Problem(self.attack, self.classifier, inputs, y, **options)

    @staticmethod
    def repeat(tensors: Any, count: int) -> Any:
        """Tensors, each so many times over along the first axis."""
        return keras.tree.map_structure(
            lambda each: None if each is None else ops.concatenate([each] * count), tensors
        )

    def _masked(self, tensor: Any) -> Any:
        return tensor if self.mask is None else tensor * self.mask

"""What an attack has to solve for one batch, in tensors, inside compiled code."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_parseval._backend import input_gradient
from keras_parseval._classifier import Classifier
from keras_parseval._seed import Seed
from keras_parseval.attacks._geometry import GEOMETRIES, choose

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
        round: The number of this round, from 0, of an attack that has several.
        previous: The worst perturbation of the rounds before this one, or `None` in the first.
        clean_outputs: What the model says of the clean batch, where that is known already.
        labels: The labels, where they are known already.

    Attributes:
        x: The tensor to perturb.
        epsilon: Epsilon, in the type of `x`.
        seed: Seed of all that is random in this round.
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
        round: Any = 0,
        previous: Any = None,
        clean_outputs: Any = None,
        labels: Any = None,
    ):
        self.attack, self.classifier = attack, classifier
        self.inputs, self.y = inputs, y
        self.x = attack.select(inputs)
        self.epsilon = ops.cast(epsilon, self.x.dtype)
        self.mask = None if mask is None else ops.cast(mask, self.x.dtype)
        self._first_seed = Seed(getattr(attack, "seed", 0)) if seed is None else seed
        self.round, self.previous = round, previous
        self.seed = self._first_seed.restart(round)
        self._geometry = GEOMETRIES[attack.norm]
        self._clean_outputs, self._labels = clean_outputs, labels
        if attack.bounds is not None:
            # A feature that is out of bounds from the start goes no further out.
            low, high = attack.bounds
            self._lowest, self._highest = ops.minimum(self.x, low), ops.maximum(self.x, high)
            self._least, self._most = self._lowest - self.x, self._highest - self.x

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

    @property
    def classes(self) -> int:
        """The number of classes; 2 for a classifier of one or several binary decisions."""
        if self.classifier.encoding == "binary":
            return 2
        known = getattr(self.classifier.model, "outputs", None)
        return (known[0] if known else self.clean_outputs).shape[-1]

    def solution(self) -> Any:
        """The inputs with the perturbation that the attack finds."""
        return self.move(self.worst_perturbation())

    def worst_perturbation(self) -> Any:
        """For each example, the perturbation of the round that misleads the model most."""
        first = self.attack.perturbation(self)
        # After the first round, which most often knows the outputs and so the number of classes.
        rounds = self.attack.rounds(self.classes)
        if rounds == 1:
            return first

        def attempt(number: Any, worst: tuple[Any, Any]) -> tuple[Any, Any]:
            delta = self.attack.perturbation(self.in_round(number, worst[0]))
            return self.worse((delta, self.success(delta)), worst)

        return ops.fori_loop(1, rounds, attempt, (first, self.success(first)))[0]

    @staticmethod
    def worse(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
        """Of two perturbations with their success, for each example the one that is further."""
        further = one[1] > other[1]
        return choose(further, one[0], other[0]), ops.where(further, one[1], other[1])

    def in_round(self, number: Any, previous: Any) -> "Problem":
        """The same problem, in another round."""
        return self._like(round=number, previous=previous)

    def for_attack(self, attack: "Attack") -> "Problem":
        """The same problem for another attack, with seeds of its own."""
        return self._like(attack=attack)

    def _like(self, attack: "Attack | None" = None, **round_options: Any) -> "Problem":
        options = {"epsilon": self.epsilon, "mask": self.mask, **round_options}
        if attack is None:
            attack, options["seed"] = self.attack, self._first_seed
        # Known already, and not to be asked for inside a loop.
        options |= {"clean_outputs": self.clean_outputs, "labels": self.labels}
        return Problem(attack, self.classifier, self.inputs, self.y, **options)

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
        return self._geometry.direction(self.masked(gradient))

    def slope(self, delta: Any, loss: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
        """At the perturbed batch: the direction that raises a loss, the loss, and the success.

        Args:
            delta: The perturbation.
            loss: Function of the model's outputs, that gives a number for each example.
        """

        def objective(x: Any) -> tuple[Any, Any]:
            outputs = self.classifier.outputs(self.attack.replace(self.inputs, x))
            losses = loss(outputs)
            return ops.sum(losses), (losses, outputs)

        point = self.attack.select(self.move(delta))
        gradient, (losses, outputs) = input_gradient(objective, point)
        direction = self._geometry.direction(self.masked(gradient))
        return direction, losses, self.success_of(outputs)

    def success(self, delta: Any) -> Any:
        """For each example, how far the attack has got: the larger, the more is it misled."""
        return self.success_of(self.outputs(delta))

    def success_of(self, outputs: Any) -> Any:
        """The same from what the model said."""
        success = self.classifier.success(self.labels, outputs)
        return -success if self.attack.labels == "least_likely" else success

    def seed_of_draw(self, number: Any) -> Seed:
        """A seed for one of many draws, told apart by a number that counts over all rounds."""
        return self._first_seed.draw(number)

    def random(self, seed: Seed) -> Any:
        """A random perturbation: of the whole ball, or of its surface in the 2-norm."""
        return self.limit(self.masked(self._geometry.random(self.x, self.epsilon, seed)))

    def limit(self, delta: Any) -> Any:
        """The perturbation, brought back to the ball and to the bounds."""
        delta = self._geometry.project(delta, self.epsilon)
        return delta if self.attack.bounds is None else ops.clip(delta, self._least, self._most)

    def move(self, delta: Any) -> Any:
        """The inputs with the perturbation, which `limit` allows, added."""
        moved = self.x + delta
        if self.attack.bounds is not None:
            # Once more, because a sum is rounded.
            moved = ops.clip(moved, self._lowest, self._highest)
        return self.attack.replace(self.inputs, moved)

    def repeated(self, count: int, epsilon: Any) -> "Problem":
        """The same batch so many times over, with an epsilon for each."""
        inputs, y = self.repeat((self.inputs, self.y), count)
        mask = self.mask
        if mask is not None and len(mask.shape) == len(self.x.shape) and mask.shape[0] != 1:
            mask = self.repeat(mask, count)
        options = {"epsilon": epsilon, "mask": mask, "seed": self._first_seed}
        return Problem(self.attack, self.classifier, inputs, y, **options)

    @staticmethod
    def repeat(tensors: Any, count: int) -> Any:
        """Tensors, each so many times over along the first axis."""
        return keras.tree.map_structure(
            lambda each: None if each is None else ops.concatenate([each] * count), tensors
        )

    def masked(self, tensor: Any) -> Any:
        """The tensor, with 0 for features that must stay as they are."""
        return tensor if self.mask is None else tensor * self.mask

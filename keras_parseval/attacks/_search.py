"""The search for the worst case: round after round, on the examples that are still right."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import COMPILES, NoGradientError, call_compiled
from keras_parseval._batches import padded
from keras_parseval._classifier import not_a_number
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._findings import Attempt, Findings
from keras_parseval.attacks._levels import level_epsilons


class Search:
    """Attacks some examples at several levels, from the smallest perturbation to the largest.

    An example that falls at one level has fallen at all larger ones: its perturbation is allowed
    there as well. Each round of each attack is one pass over the examples that are still right,
    packed into batches of one size for each attack, so that nothing is compiled anew.

    Args:
        model: A Keras classifier.
        attack: The attack, with its labels settled.
        size: Number of examples at a time.
        measure: `"epsilon"` or `"snr"`.
        levels: The levels, as they were given.
        keep_inputs: How many crafted inputs to keep, of the examples that fall first.
        safe_radii: Examples are not attacked by less than this, one number for each; `None` to
            attack all.
        pack_sizes: Number of examples in a pack, for each attack, where that has been chosen in
            another part of the data.
    """

    def __init__(
        self,
        model: Any,
        attack: Attack,
        size: int,
        measure: str,
        levels: list[float],
        keep_inputs: int = 0,
        safe_radii: np.ndarray | None = None,
        pack_sizes: np.ndarray | None = None,
    ):
        self.model, self.attack, self.size = model, attack, size
        self.measure, self.levels, self.keep_inputs = measure, levels, keep_inputs
        self.safe_radii = safe_radii
        self.pack_sizes, self.pack_size = pack_sizes, size
        # From the smallest perturbation to the largest.
        self.order = np.argsort(levels if measure == "epsilon" else [-each for each in levels])

    def passes(self, classes: int) -> list[tuple[int, int, int]]:
        """Level, attack and round of each pass, in order."""
        return [
            (int(level), number, round)
            for level in self.order
            for number, attack in enumerate(self.attack.members())
            for round in range(attack.rounds(classes))
        ]

    def begin(self, inputs: Any, y: Any) -> Findings:
        """What the model says of clean examples."""
        count, levels = len(self.attack.select(inputs)), len(self.levels)
        batches = [self._look(inputs, y, part) for part in self._packs(np.arange(count))]
        outputs, labels, decisions, right, flat = map(np.concatenate, zip(*batches))
        epsilons = level_epsilons(
            ops.convert_to_numpy(self.attack.select(inputs)),
            *(self.measure, self.levels, self.attack.norm, self.attack.mask),
        )
        none = np.full((levels, count), -1, "int32")
        sizes = self.pack_sizes
        if sizes is None:
            sizes = np.zeros(len(self.attack.members()), "int32")
        return Findings(
            labels=labels,
            decisions=np.stack([decisions] * (levels + 1)),
            right=np.stack([right] * (levels + 1)),
            epsilons=epsilons.reshape(levels, count),
            broken_by=none,
            broken_in=none.copy(),
            flat=flat,
            kept=np.zeros(0, "int64"),
            inputs=ops.convert_to_numpy(self.attack.select(inputs))[:0],
            outputs=outputs,
            pack_sizes=sizes.copy(),
        )

    def _fit_packs(self, found: Findings, number: int, count: int) -> int:
        """A pack size of at most `size`, for as few packs of so many examples as can be.

        An attack that is compiled keeps its own, unless that makes more than twice as many packs.
        """
        fewest = -(-count // self.size)
        kept = int(found.pack_sizes[number])
        if COMPILES and kept and -(-count // kept) <= 2 * fewest:
            return kept
        # Of eight, because processors compute on so many numbers at once.
        fitted = min(self.size, 8 * -(-count // (8 * fewest)))
        found.pack_sizes[number] = fitted
        return fitted

    def _attacked(self, found: Findings, level: int, right: np.ndarray) -> np.ndarray:
        """Which of the examples that are right are attacked at a level."""
        sizes = found.epsilons[level]
        attacked = (right > 0) & (sizes > 0)
        return attacked if self.safe_radii is None else attacked & (sizes >= self.safe_radii)

    def run(self, inputs: Any, y: Any, found: Findings, classes: int) -> Iterator[Findings]:
        """Go on with the passes, and give what is known after each."""
        for level, number, round in self.passes(classes)[int(found.passes) :]:
            place = list(self.order).index(level)
            if place and number == round == 0:
                found.take_over(level, self.order[place - 1])
            if self.attack.members()[number].continues and round == 0:
                found.carry(np.zeros_like(ops.convert_to_numpy(self.attack.select(inputs))))
            if number not in found.failed:
                self._pass(inputs, y, found, level, number, round)
            found.end_pass()
            yield found

    def _pass(
        self, inputs: Any, y: Any, found: Findings, level: int, number: int, round: int
    ) -> None:
        attack = self.attack.members()[number]
        alive = np.flatnonzero(self._attacked(found, level, found.right[level + 1]))
        if not len(alive):
            return
        self.pack_size = self._fit_packs(found, number, len(alive))
        for part in self._packs(alive):
            try:
                attempt = self._attempt(attack, inputs, y, found, level, round, part)
            except NoGradientError:
                # Others of the suite may need none.
                if len(found.failed) + 1 == len(self.attack.members()):
                    raise
                found.fail(number)
                return
            if attack.continues:
                found.carry(attempt.delta, part)
            fallen = found.fall(level, number, round, part, attempt)
            found.keep(part[fallen], attempt.crafted[fallen], self.keep_inputs)

    def _packs(self, numbers: np.ndarray) -> list[np.ndarray]:
        size = self.pack_size
        return [numbers[at : at + size] for at in range(0, len(numbers), size)]

    def _tensors(self, inputs: Any, y: Any, part: np.ndarray, **others: np.ndarray) -> Any:
        """The examples of one pack, and what is told of each, padded where a compiler wants it."""
        rows = {"x": keras.tree.map_structure(ops.convert_to_numpy, inputs), "y": y, **others}
        rows = keras.tree.map_structure(lambda each: ops.convert_to_numpy(each)[part], rows)
        return padded(rows, self.pack_size) if COMPILES else rows

    def _look(self, inputs: Any, y: Any, part: np.ndarray) -> tuple[np.ndarray, ...]:
        """Outputs, labels, decisions, whether right, and whether the gradient is zero."""
        tensors: dict[str, Any] = {**self._tensors(inputs, y, part), "epsilon": np.float32(0.0)}
        if self.attack.mask is not None:
            tensors["mask"] = self.attack.mask
        try:
            follows = any(each.uses_gradient for each in self.attack.members())
            known = self._look_at_clean(tensors, follows)
        except NoGradientError:
            known = self._look_at_clean(tensors, False)
            known[-1] = ~known[-1]
        if np.isnan(known[0]).any():
            raise not_a_number(self.model)
        return tuple(each[: len(part)] for each in known)

    def _look_at_clean(self, tensors: dict[str, Any], follows_gradient: bool) -> list[np.ndarray]:
        attack = self.attack

        def look(model: Any, tensors: dict[str, Any]) -> Any:
            classifier = attack.classifier(model)
            problem = attack.problem(classifier, tensors)
            # First, because the same pass gives the outputs.
            direction = problem.ascend() if follows_gradient else ops.ones_like(problem.x)
            features = tuple(range(1, len(direction.shape)))
            outputs, y = problem.clean_outputs, tensors["y"]
            return (
                *(outputs, classifier.true_labels(y, outputs)),
                *(classifier.predicted_labels(outputs), classifier.correct(y, outputs)),
                ops.all(direction == 0, axis=features),
            )

        key = ("look", follows_gradient, attack.static_key(self.model))
        known = call_compiled(self.model, key, look, tensors)
        return [ops.convert_to_numpy(each) for each in known]

    def _attempt(
        self,
        attack: Attack,
        inputs: Any,
        y: Any,
        found: Findings,
        level: int,
        round: int,
        part: np.ndarray,
    ) -> Attempt:
        """One round of one attack on one pack."""
        rank = len(self.attack.select(inputs).shape)
        sizes = found.epsilons[level].reshape(-1, *(1,) * (rank - 1))
        others = {"epsilon": sizes, "clean_outputs": found.outputs}
        if attack.continues:
            others["previous"] = found.carried
        tensors = self._tensors(inputs, y, part, **others)
        tensors["round"] = np.int32(round)
        if attack.mask is not None:
            tensors["mask"] = attack.mask

        def attempt(model: Any, tensors: dict[str, Any]) -> Any:
            classifier = attack.classifier(model)
            problem = attack.problem(classifier, tensors)
            delta = attack.perturbation(problem)
            crafted = problem.move(delta)
            outputs = classifier.outputs(crafted)
            right = classifier.correct(tensors["y"], outputs)
            nans = ops.any(ops.isnan(outputs))
            decisions = classifier.predicted_labels(outputs)
            return delta, attack.select(crafted), decisions, right, nans

        key = ("attempt", attack.static_key(self.model))
        *known, nans = call_compiled(self.model, key, attempt, tensors)
        if bool(nans):
            raise not_a_number(self.model)
        return Attempt(*(ops.convert_to_numpy(each)[: len(part)] for each in known))

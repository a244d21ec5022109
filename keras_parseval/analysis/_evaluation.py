"""An attack on a whole data set: in parts that fit into memory, saved on the way."""

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_parseval._backend import COMPILES, call_compiled
from keras_parseval._batches import Examples, check_labels, padded
from keras_parseval._classifier import Classifier, not_a_number
from keras_parseval._progress import Progress, Verbose
from keras_parseval.analysis._backup import Backup, describe_settings, digest_of
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._findings import Findings
from keras_parseval.attacks._inputs import check_batch
from keras_parseval.attacks._levels import level_epsilons
from keras_parseval.attacks._search import Search

# How many batches a search attacks together: more are packed better, and take more memory.
_BATCHES = 16


class Evaluation:
    """One attack at several levels.

    Args:
        model: A compiled Keras classifier.
        attack: The attack, with its labels settled.
        measure, levels, keep_inputs, safe_radii: As for `Search`.

    Attributes:
        moved: Whether any example was moved at all.
        features: The number of features of the input that is attacked.
    """

    def __init__(
        self,
        model: Any,
        attack: Attack,
        measure: str,
        levels: list[float],
        keep_inputs: int,
        safe_radii: np.ndarray | None = None,
    ):
        self.model, self.attack = model, attack
        self.measure, self.levels, self.keep_inputs = measure, levels, keep_inputs
        self.safe_radii = safe_radii
        self.moved, self.features = False, 0
        # Known once the first batch has been looked at.
        self._size = self._classes = self._passes = 0
        self._pack_sizes: np.ndarray | None = None
        self._is_search = False

    def run(self, x: Any, y: Any, batch_size: int, backup: Any, verbose: Verbose) -> Findings:
        """What the attack finds on all examples."""
        check = functools.partial(check_labels, self.model, self.attack.classifier_loss)
        examples = Examples(x, y, batch_size=batch_size, check_labels=check)
        saved, parts = self._backup(backup, batch_size), list[Findings]()
        progress: Progress | None = None
        for inputs, labels in self._parts(examples):
            if progress is None:
                total = None if examples.total is None else examples.total * self._passes
                progress = Progress(total, verbose)
            digest = "" if backup is None else digest_of((inputs, labels))
            known = saved.part(len(parts), digest)
            batches, passes = -(-len(labels) // self._size), 0
            radii = self._safe_radii(sum(part.count for part in parts), len(labels))
            for found in self._rounds(inputs, labels, radii, known):
                saved.save(len(parts), digest, found)
                right = np.concatenate([part.right for part in [*parts, found]], axis=1)
                lowest = float(right.mean(axis=1).min())
                progress.advance(batches * (int(found.passes) - passes), accuracy=lowest)
                passes = int(found.passes)
            parts.append(found)
        saved.remove()
        return Findings.joined(parts, self.keep_inputs)

    def _parts(self, examples: Examples) -> Iterator[tuple[Any, Any]]:
        """The data in parts: single batches, or as many as a search packs together."""
        waiting: list[tuple[Any, Any]] = []
        for inputs, labels in examples:
            x = check_batch(self.attack, inputs)
            if not self._size:
                self._look_at_first(inputs, x)
            self._size = max(self._size, len(labels))
            waiting.append((inputs, labels))
            if len(waiting) == (_BATCHES if self._is_search else 1):
                yield _joined(waiting)
                waiting = []
        if waiting:
            yield _joined(waiting)

    def _look_at_first(self, inputs: Any, x: np.ndarray) -> None:
        if not self.model.built:
            self.model(inputs)
        self.attack.classifier(self.model).check_probabilities(inputs)
        self.features = x[0].size
        self._classes = self._count_classes(inputs)
        rounds = sum(each.rounds(self._classes) for each in self.attack.members())
        several = rounds > 1 and self.attack.labels != "least_likely"
        self._is_search = self.attack.searches or several or self.safe_radii is not None
        self._passes = rounds * len(self.levels) if self._is_search else 1
        if self._is_search and self.attack.mask is not None:
            _check_mask(self.attack.mask, x)

    def _count_classes(self, inputs: Any) -> int:
        if self.attack.classifier(self.model).encoding == "binary":
            return 2
        known = getattr(self.model, "outputs", None)
        if known:
            return known[0].shape[-1]
        infer = functools.partial(_infer, self.attack)
        first = keras.tree.map_structure(lambda each: each[:1], inputs)
        key = ("outputs of one", self.attack.static_key(self.model))
        return call_compiled(self.model, key, infer, first).shape[-1]

    def _backup(self, path: Any, batch_size: int) -> Backup:
        if path is None:
            return Backup(None, "")
        others = {"levels": [self.measure, *self.levels], "batch_size": batch_size}
        others["keep_inputs"] = self.keep_inputs
        if self.safe_radii is not None:
            others["safe_radii"] = digest_of(self.safe_radii)
        return Backup(path, describe_settings(self.model, self.attack, **others))

    def _safe_radii(self, start: int, count: int) -> np.ndarray | None:
        """Those of one part of the data; 0 where there are too few, which is told in the end."""
        if self.safe_radii is None:
            return None
        radii = self.safe_radii[start : start + count]
        return np.pad(radii, (0, count - len(radii)))

    def _rounds(
        self, inputs: Any, labels: Any, radii: np.ndarray | None, found: Findings | None
    ) -> Iterator[Findings]:
        """What is known after each round, from what was known already."""
        if found is not None and found.passes == self._passes:
            self.moved = True
            self._pack_sizes = found.pack_sizes
            yield found
        elif not self._is_search:
            yield self._together(inputs, labels)
        else:
            options = (self._size, self.measure, self.levels, self.keep_inputs, radii)
            search = Search(self.model, self.attack, *options, self._pack_sizes)
            found = search.begin(inputs, labels) if found is None else found
            self._pack_sizes = found.pack_sizes
            self.moved = True
            yield from search.run(inputs, labels, found, self._classes)

    def _together(self, inputs: Any, labels: Any) -> Findings:
        """What a simple attack finds at all levels at once."""
        attack, levels, count = self.attack, len(self.levels), len(labels)
        tensors = {"x": padded(inputs, self._size), "y": padded(labels, self._size)}
        epsilons = level_epsilons(
            attack.select(tensors["x"]), self.measure, self.levels, attack.norm, attack.mask
        )
        tensors["epsilon"] = epsilons
        if attack.mask is not None:
            tensors["mask"] = attack.mask
        decide = functools.partial(_decide, attack, levels)
        key = ("robust accuracy", levels, attack.static_key(self.model))
        decided = call_compiled(self.model, key, decide, tensors)
        labels, decisions, right, crowd, nans = map(ops.convert_to_numpy, decided)
        if nans:
            raise not_a_number(self.model)
        right = right[:, :count]
        crowd = crowd.reshape(levels, -1, *crowd.shape[1:])[:, :count]
        moved = crowd != attack.select(tensors["x"])[:count]
        flat = ~moved.any(axis=(0, *range(2, moved.ndim)))
        self.moved |= not flat.all()
        broken = np.where((right[1:] < right[0]), 0, -1).astype("int32")
        found = Findings(
            labels=labels[:count],
            decisions=decisions[:, :count],
            right=right,
            epsilons=epsilons.reshape(levels, -1)[:, :count],
            broken_by=broken,
            broken_in=np.where(broken < 0, -1, 0).astype("int32"),
            flat=flat & (self.levels != [0.0]),
            kept=np.zeros(0, "int64"),
            inputs=crowd[0, :0],
            passes=np.ones((), "int32"),
        )
        for level in Search(self.model, attack, 1, self.measure, self.levels).order:
            fallen = np.flatnonzero(broken[level] == 0)
            found.keep(fallen, crowd[level][fallen], self.keep_inputs)
        return found


def _decide(attack: Attack, levels: int, model: Any, tensors: dict[str, Any]) -> tuple[Any, ...]:
    """Labels, decisions, and whether they are right: a row for clean examples, then for each level.

    And the crafted inputs, and whether any output is not a number.
    """
    classifier, y = attack.classifier(model), tensors["y"]
    problem = attack.problem(classifier, tensors)
    crowd = attack.perturbed_levels(problem, levels, tensors["epsilon"])
    crafted = attack.select(crowd)
    clean, outputs = problem.clean_outputs, _outputs_of_crowd(classifier, crowd, levels)
    attacked = classifier.correct(problem.repeat(y, levels), outputs)
    right = [classifier.correct(y, clean)[None], ops.reshape(attacked, (levels, -1))]
    everything = ops.concatenate([clean, outputs])
    decided = classifier.predicted_labels(everything)
    decisions = ops.reshape(decided, (levels + 1, -1, *decided.shape[1:]))
    nans = ops.any(ops.isnan(everything))
    labels = classifier.true_labels(y, clean)
    return labels, decisions, ops.concatenate(right), crafted, nans


def _outputs_of_crowd(classifier: Classifier, crowd: Any, levels: int) -> Any:
    if COMPILES:
        return classifier.outputs(crowd)

    def part(level: int) -> Any:
        return keras.tree.map_structure(lambda each: ops.split(each, levels)[level], crowd)

    # What is not compiled is slow with large batches: one level after the other.
    return ops.concatenate([classifier.outputs(part(level)) for level in range(levels)])


def _infer(attack: Attack, model: Any, inputs: Any) -> Any:
    return attack.classifier(model).outputs(inputs)


def _joined(batches: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    if len(batches) == 1:
        return batches[0]
    return keras.tree.map_structure(
        lambda *each: np.concatenate([ops.convert_to_numpy(part) for part in each]), *batches
    )


def _check_mask(mask: Any, x: np.ndarray) -> None:
    if np.ndim(mask) == x.ndim and len(mask) != 1:
        raise ValueError(
            "`mask` must be the same for all examples, because those that are still right are "
            f"packed together. Received: mask of shape {np.shape(mask)}, for an input of shape "
            f"{x.shape}"
        )

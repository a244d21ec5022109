"""What is known of examples that are attacked: the worst so far, and what led to it."""

import dataclasses
from typing import NamedTuple

import numpy as np


class Attempt(NamedTuple):
    """What one round did to some examples: perturbations, inputs, decisions, whether right."""

    delta: np.ndarray
    crafted: np.ndarray
    decisions: np.ndarray
    right: np.ndarray


@dataclasses.dataclass
class Findings:
    """What is known of some examples. Rows are levels, clean first where there is one more.

    All are arrays, so that they can be saved and joined.

    Args:
        labels: The classes that are right.
        decisions: The worst decisions, clean and at each level.
        right: Whether they are right, or what part of an example's decisions is.
        epsilons: The size of the perturbation at each level.
        broken_by: The number of the attack that made them so, or -1.
        broken_in: The round in which it did.
        flat: Whether the gradient is zero on the clean example.
        kept: The numbers of the examples whose crafted inputs are kept, as they fell.
        inputs: These inputs.
        failed: The numbers of attacks that found no gradient to follow.
        carried: Where an attack that goes on stands with each example.
        passes: How many passes over the examples are done.
        outputs: What the model says of the clean examples.
        pack_sizes: For each attack, how many examples are attacked together; 0 until it begins.
    """

    labels: np.ndarray
    decisions: np.ndarray
    right: np.ndarray
    epsilons: np.ndarray
    broken_by: np.ndarray
    broken_in: np.ndarray
    flat: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray
    failed: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "int32"))
    carried: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "float32"))
    passes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((), "int32"))
    outputs: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "float32"))
    pack_sizes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "int32"))

    @property
    def count(self) -> int:
        """The number of examples."""
        return self.right.shape[1]

    def take_over(self, level: int, smaller: int) -> None:
        """What fell at a smaller level has fallen at this one."""
        self.right[level + 1] = self.right[smaller + 1]
        self.decisions[level + 1] = self.decisions[smaller + 1]
        self.broken_by[level] = self.broken_by[smaller]
        self.broken_in[level] = self.broken_in[smaller]

    def fall(
        self, level: int, attack: int, round: int, part: np.ndarray, attempt: "Attempt"
    ) -> np.ndarray:
        """Take down which of the examples in `part` fell, or fell further; return whether."""
        fallen = attempt.right < self.right[level + 1, part]
        examples = part[fallen]
        self.right[level + 1, examples] = attempt.right[fallen]
        self.decisions[level + 1, examples] = attempt.decisions[fallen]
        self.broken_by[level, examples] = attack
        self.broken_in[level, examples] = round
        return fallen

    def fail(self, attack: int) -> None:
        """Take down that an attack found no gradient to follow."""
        self.failed = np.append(self.failed, attack)

    def carry(self, deltas: np.ndarray, part: np.ndarray | None = None) -> None:
        """Take down where an attack stands with the examples in `part`, or at first with all."""
        if part is None:
            self.carried = deltas
        else:
            self.carried[part] = deltas

    def end_pass(self) -> None:
        """Count one more pass."""
        self.passes = self.passes + 1

    def keep(self, examples: np.ndarray, crafted: np.ndarray, most: int) -> None:
        """Keep the crafted inputs of these examples too, unless there are as many as allowed."""
        new = ~np.isin(examples, self.kept)
        new &= np.cumsum(new) <= most - len(self.kept)
        self.kept = np.append(self.kept, examples[new])
        self.inputs = np.concatenate([self.inputs, crafted[new]])

    @classmethod
    def joined(cls, parts: "list[Findings]", most: int) -> "Findings":
        """What is known of all examples; of the inputs, those that fell at the smallest level."""
        starts = np.cumsum([0, *(part.count for part in parts)])
        kept = np.concatenate([part.kept + start for part, start in zip(parts, starts)])
        inputs = np.concatenate([part.inputs for part in parts])
        rows = ("decisions", "right", "epsilons", "broken_by", "broken_in")
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=int(name in rows))
            for name in ("labels", *rows, "flat", "failed")
        }
        sizes = np.where(joined["broken_by"] >= 0, joined["epsilons"], np.inf).min(axis=0)[kept]
        first = np.lexsort((kept, sizes))[:most]
        joined["failed"] = np.unique(joined["failed"])
        return cls(**joined, kept=kept[first], inputs=inputs[first])

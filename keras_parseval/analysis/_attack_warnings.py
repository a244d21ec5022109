"""What in the figures of an attack would mislead a reader."""

import itertools

import numpy as np

from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._findings import Findings

# Shares of all examples that are worth a word.
_MASKED, _MUCH = 0.02, 0.05


def attack_warnings(attack: Attack, found: Findings, features: int) -> tuple[str, ...]:
    """Sentences for the reader of a result.

    Args:
        attack: The attack.
        found: What it found.
        features: The number of features that it may move.
    """
    sentences = [
        *_too_large(attack, found, features),
        *_flat(attack, found),
        *_masked(attack, found),
        *_weak_start(attack, found),
        *_many_restarts(attack, found),
    ]
    return tuple(sentences)


def _too_large(attack: Attack, found: Findings, features: int) -> list[str]:
    if attack.bounds is None:
        return []
    span = attack.bounds[1] - attack.bounds[0]
    reach = span if attack.norm == "inf" else span * np.sqrt(features)
    if found.epsilons.max() < reach:
        return []
    return [
        f"An epsilon of {found.epsilons.max():.4g} allows any input within the bounds "
        f"{attack.bounds}: it is not small. Epsilon is in the units of the model's input."
    ]


def _flat(attack: Attack, found: Findings) -> list[str]:
    share = found.flat.mean()
    sentences = []
    if len(found.failed):
        names = ", ".join(attack.members()[number].describe() for number in found.failed)
        sentences.append(f"The model has no gradient, so these attacks could not run: {names}.")
    elif share > 0 and any(each.uses_gradient for each in attack.members()):
        sentences.append(
            f"The gradient is zero on {found.flat.sum()} of {found.count} examples: attacks that "
            "follow it hardly move them, and their figure is too high."
        )
    return sentences


def _newly_broken(found: Findings) -> np.ndarray:
    """The number of the attack where an example fell at this level and at no smaller one, or -1.

    What a smaller level broke is not attacked again, so nobody knows which attack breaks it here.
    """
    newly, order = found.broken_by.copy(), np.argsort(found.epsilons.mean(axis=1))
    for smaller, larger in itertools.pairwise(order):
        newly[larger, found.broken_by[smaller] >= 0] = -1
    return newly


def _most_at_a_level(found: Findings, attacks: list[int]) -> int:
    """How many examples these attacks broke, at the level where they broke the most."""
    return int(np.isin(_newly_broken(found), attacks).sum(axis=1).max())


def _masked(attack: Attack, found: Findings) -> list[str]:
    members = attack.members()
    kinds = [each.uses_gradient for each in members]
    if not any(kinds):
        return []
    # Only what comes after all that follow the gradient was left by them.
    last = max(number for number, uses in enumerate(kinds) if uses)
    found_without = _most_at_a_level(found, list(range(last + 1, len(members))))
    if found_without <= _MASKED * found.count:
        return []
    return [
        f"Without gradients, {found_without} of {found.count} examples were broken at one level "
        "that the gradient attacks had left: the model masks its gradients. Do not trust gradient "
        "attacks on it, nor that this figure is the last word."
    ]


def _weak_start(attack: Attack, found: Findings) -> list[str]:
    members = attack.members()
    if len(members) < 2 or not members[0].uses_gradient:
        return []
    others = [n for n, each in enumerate(members) if n and each.uses_gradient]
    missed = _most_at_a_level(found, others)
    if missed <= _MUCH * found.count:
        return []
    return [
        f"{members[0].describe()} left {missed} of {found.count} examples right at one level that "
        "other gradient attacks broke: its figure alone would mislead."
    ]


def _many_restarts(attack: Attack, found: Findings) -> list[str]:
    sentences = []
    for number, each in enumerate(attack.members()):
        if getattr(each, "restarts", 1) == 1 or getattr(each, "targets", None) is not None:
            continue
        late = ((_newly_broken(found) == number) & (found.broken_in > 0)).sum(axis=1).max()
        if late > _MUCH * found.count:
            sentences.append(
                f"{each.describe()}: restarts broke {late} of {found.count} examples at one level "
                "that the first start had left. More restarts or steps may well break others."
            )
    return sentences

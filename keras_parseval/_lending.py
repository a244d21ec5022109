"""The one file that gives an object attributes which are not its own.

Keras offers no other way to train with another step, or to look behind an activation. Whatever is
lent for a while is taken back, also when something fails.
"""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def lend(owner: Any, **attributes: Any) -> Iterator[None]:
    """Within this context the object has these attributes; after it, those that it had before."""
    own = vars(owner)
    before = {name: own[name] for name in attributes if name in own}
    # A property keeps its value elsewhere, and is given it back; all else is found in the class.
    before |= {name: getattr(owner, name) for name in attributes if _is_property(owner, name)}
    try:
        give(owner, **attributes)
        yield
    finally:
        for name in attributes:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


def give(owner: Any, **attributes: Any) -> None:
    """Give an object that was made here its attributes, for good."""
    for name, value in attributes.items():
        setattr(owner, name, value)


def _is_property(owner: Any, name: str) -> bool:
    return isinstance(getattr(type(owner), name, None), property)

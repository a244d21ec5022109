"""What all figures share: colours, lines, and the checks of what is drawn."""

import itertools
from collections.abc import Iterator
from typing import Any

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def pyplot() -> Any:
    """matplotlib's pyplot, or an error that says how to get it."""
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError(
            'Figures need matplotlib; install it with `pip install "keras-parseval[plots]"`.'
        ) from error
    return matplotlib.pyplot


def axes_or_new(ax: Any) -> Any:
    """The given Axes, or those of a new figure."""
    return pyplot().subplots(layout="constrained")[1] if ax is None else ax


def styles() -> Iterator[dict[str, Any]]:
    """Colours, lines and markers, any two of which differ in more than the colour."""
    for color, line, marker in zip(*map(itertools.cycle, (COLORS, _LINES, _MARKERS))):
        yield {"color": color, "linestyle": line, "marker": marker, "markersize": 5}


def finish(ax: Any, **legend: Any) -> Any:
    """The Axes with a legend, and without a frame."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, **legend)
    return ax


def check_named(name: str, named: Any, kind: Any) -> None:
    """Raise unless this is a dictionary of such objects, with at least one."""
    if not isinstance(named, dict) or not named:
        raise TypeError(
            f"`{name}` must be a dictionary, with the names for the legend as its keys. "
            f"Received: {named!r}"
        )
    for key, value in named.items():
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise TypeError(
                f"The values of `{name}` must be {' or '.join(each.__name__ for each in kinds)}. "
                f"Received: {value!r} for '{key}'"
            )

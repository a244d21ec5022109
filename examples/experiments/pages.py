"""Pages of results: text with fields that functions fill in, and figures that are small."""

import re

from PIL import Image

FIELD = re.compile(r"\{\{(.*?)\}\}")


def render(text, functions):
    """The text with every field, the name of a function and its arguments, replaced.

    Args:
        text: The text, with fields such as `{{accuracy mnist 33}}`.
        functions: What a field can call, by name.
    """

    def filled(match):
        name, *arguments = match.group(1).split()
        if name not in functions:
            raise ValueError(
                f"A field must begin with one of {', '.join(functions)}. Received: {match.group()}"
            )
        return str(functions[name](*arguments))

    return FIELD.sub(filled, text)


def keep_shown(folder, page):
    """Remove the figures of a folder that a page does not show, and make the others small."""
    for path in folder.glob("*.png"):
        if path.name not in page.read_text():
            path.unlink()
            continue
        image = Image.open(path)
        if image.mode != "P":
            # So many colours are enough for a chart, and take a third of the space. This way to
            # choose them keeps those of thin lines apart.
            few = image.convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE)
            few.save(path, optimize=True)

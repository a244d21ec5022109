"""Turns names such as `kp.FGSM` in the text into links to the API reference.

And makes the pages of reports, from their data.
"""

import ast
import os
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "keras_parseval"
# Blocks of code, headings, and what is a link already.
LEFT_ALONE = re.compile(
    r"(<pre\b.*?</pre>|<h\d\b.*?</h\d>|<a\b.*?</a>|<autoref\b.*?</autoref>)",
    re.DOTALL,
)
NAME = re.compile(r"<code>(kp\.[\w.]+)</code>")


def public_names():
    """From each public name, as users write it, to where the reference has it."""
    names = {}
    for path in [*PACKAGE.glob("[a-z]*.py"), *PACKAGE.glob("[a-z]*/__init__.py")]:
        room = path.parent.name if path.stem == "__init__" else path.stem
        for name in exported_names(path):
            names[f"kp.{room}.{name}"] = f"keras_parseval.{room}.{name}"
            names[f"kp.{name}"] = f"keras_parseval.{room}.{name}"
    return names


def exported_names(path):
    """The names in a module's `__all__`; the module is read, and not imported."""
    for node in ast.parse(path.read_text()).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
        ):
            return ast.literal_eval(node.value)
    return []


def on_files(files, config):
    """Puts the page of each report beside its data."""
    os.environ.setdefault("KERAS_BACKEND", "jax")  # any will do
    sys.path.insert(0, str(PACKAGE.parent))
    from keras_parseval.reports import RobustnessReport

    for data in sorted(DOCS.glob("reports/*.json")):
        page = RobustnessReport.load(data).to_html()
        name = str(data.relative_to(DOCS).with_suffix(".html"))
        files.append(File.generated(config, name, content=page))
    return files


def on_page_content(html, page, config, files):
    names = public_names()

    def link(match):
        if match[1] not in names:
            return match[0]
        return f'<autoref identifier="{names[match[1]]}">{match[0]}</autoref>'

    parts = LEFT_ALONE.split(html)
    parts[::2] = [NAME.sub(link, part) for part in parts[::2]]
    return "".join(parts)

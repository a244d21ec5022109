"""The page, made from a template. All that comes from a report is escaped."""

import functools
import importlib.resources
from typing import Any

from keras_parseval.reports import _figures
from keras_parseval.reports._verdict import number, percent, rounded_down, spending


def check_templates() -> Any:
    """Jinja2, or an error that says how to get it."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            'Reports need Jinja2; install it with `pip install "keras-parseval[report]"`.'
        ) from error
    return jinja2


def render(report: Any) -> str:
    """The page of a `RobustnessReport`, with all that it needs in it."""
    jinja2 = check_templates()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, down=rounded_down, number=number)
    environment.filters.update(code=functools.partial(_with_code, jinja2))
    environment.globals.update(figures=_figures, spending=spending, zip=zip)
    return environment.get_template("page.html").render(report=report)


def _with_code(jinja2: Any, sentence: str) -> Any:
    """A sentence, with what stands between backticks as code."""
    markup = jinja2.utils.markupsafe.Markup
    parts = [markup.escape(part) for part in sentence.split("`")]
    parts[1::2] = [markup("<code>{}</code>").format(part) for part in parts[1::2]]
    return markup("").join(parts)


def _template(name: str) -> str:
    folder = importlib.resources.files("keras_parseval.reports") / "templates"
    return (folder / name).read_text(encoding="utf-8")

"""Tables for notebooks: all text is escaped."""

import html
from collections.abc import Iterable, Sequence


def html_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
) -> str:
    """A table in HTML, with its title above it and its notes below.

    Args:
        title: What the table shows.
        headings: The names of the columns. The first one names the rows.
        rows: The cells, as text.
        notes: Sentences to put below.
    """
    lines = ["<table>", f"<caption>{html.escape(title)}</caption>", "<thead><tr>"]
    lines += [f'<th scope="col">{html.escape(heading)}</th>' for heading in headings]
    lines.append("</tr></thead><tbody>")
    for first, *others in rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>')
    lines.append("</tbody></table>")
    return "\n".join([*lines, *(f"<p>{html.escape(note)}</p>" for note in notes)])

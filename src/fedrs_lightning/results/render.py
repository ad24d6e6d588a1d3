"""Tables as text: terminal (rich), Markdown, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any, Literal

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from fedrs_lightning.results.tables import Cell, Collection, Table

FORMATS = ("terminal", "markdown", "csv", "json")


def render(tables: list[Table], collection: Collection, kind: str, width: int | None = None) -> str:
    """Text of the tables, and below them the runs left out and the notes.

    Args:
        tables: what `tabulate` returned.
        collection: what `collect` returned.
        kind: one of `FORMATS`. Terminal and Markdown round to what a reader needs, with accuracies in percent; CSV
            and JSON give full numbers as logged. CSV has no place for notes.
        width: columns of the terminal text; None asks the terminal.
    """
    if kind == "markdown":
        return "\n\n".join([*map(_markdown, tables), *_below(collection)]) + "\n"
    if kind == "csv":
        return _csv(tables)
    if kind == "json":
        return json.dumps(_json(tables, collection), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(terminal(tables, collection))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def terminal(tables: list[Table], collection: Collection) -> RenderableType:
    """The same for a rich console."""
    parts: list[RenderableType] = []
    for table in tables:
        rich = RichTable(title=table.caption[0], caption="\n".join(table.caption[1:]), box=box.SIMPLE_HEAD)
        rich.title_justify = rich.caption_justify = "left"
        rich.title_style, rich.caption_style = "bold", "dim"
        # Without spaces four columns of numbers fit a terminal of 80.
        rows = [[text.replace(" ± ", "±") for text in _row(table, row)] for row in range(len(table.labels))]
        header = _header(table)
        for index, name in enumerate(header):
            words = index == 0 or name == "protocol"
            longest = max(len(texts[index]) for texts in [*rows, header[-1:] * len(header)])
            width = min(longest, 32) if words else longest  # titles wrap first
            side: Literal["left", "right"] = "left" if words else "right"
            rich.add_column(name, justify=side, overflow="fold", vertical="bottom", min_width=width)
        for row, texts in enumerate(rows):
            cells = [None] * (len(texts) - len(table.columns) - 1) + table.cells[row] + [None]
            pairs = zip(texts, cells, strict=True)
            rich.add_row(*(Text(text, style="bold" if cell and cell.best else "") for text, cell in pairs))
        parts += [rich, ""]
    parts += [Text(text) for text in _below(collection)]
    return Group(*parts)


def number(cell: Cell | None, percent: bool) -> str:
    """`61.03 ± 0.52` in percent, `0.6103 ± 0.0052` otherwise; the value alone for one seed, `-` for an unknown one.

    Examples:
        >>> number(Cell(0.6103, 0.0052, (0.6051, 0.6155)), percent=True)
        '61.03 ± 0.52'
    """
    if cell is None:
        return "-"
    scale, digits = (100, 2) if percent else (1, 4)
    mean = f"{scale * cell.mean:.{digits}f}"
    return mean if cell.deviation is None else f"{mean} ± {scale * cell.deviation:.{digits}f}"


def _facts(table: Table) -> dict[str, list[str]]:
    """Columns of text that are shown where the rows differ in them."""
    facts = {"protocol": table.protocols, "rounds": [str(number) for number in table.rounds]}
    return {name: texts for name, texts in facts.items() if len(set(texts)) > 1}


def _header(table: Table) -> list[str]:
    titles = [f"{name} [%]" if percent else name for name, percent in zip(table.columns, table.percent, strict=True)]
    return ["method", *_facts(table), *titles, "seeds"]


def _row(table: Table, row: int) -> list[str]:
    cells = []
    for cell, percent in zip(table.cells[row], table.percent, strict=True):
        text = number(cell, percent)
        cells.append(f"{text}*" if cell and cell.best else text)
    return [table.labels[row], *(texts[row] for texts in _facts(table).values()), *cells, str(len(table.seeds[row]))]


def _markdown(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    header = _header(table)
    rules = [":--" if index == 0 or name == "protocol" else "--:" for index, name in enumerate(header)]
    rows = []
    for row in range(len(table.labels)):
        rows.append([f"**{text.removesuffix('*')}**" if text.endswith("*") else text for text in _row(table, row)])
    caption = [text.replace("* best", "bold: best") for text in table.caption]
    body = "\n".join(map(line, [header, rules, *rows]))
    return f"**{caption[0]}**\n\n{body}\n\n" + "\n".join(f"{text}.  " for text in caption[1:]).rstrip()


def _below(collection: Collection) -> list[str]:
    parts = []
    if collection.left_out:
        runs = "\n".join(f"- {store.path}: {reason}" for store, reason in collection.left_out)
        parts.append(f"Not in the table, since not complete:\n\n{runs}")
    if collection.notes:
        parts.append("Notes:\n\n" + "\n".join(f"- {note}" for note in collection.notes))
    return parts


def _csv(tables: list[Table]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["experiment", "label", "protocol", "column", "mean", "deviation", "num_seeds", "seeds", "best"])
    for table in tables:
        for row, label in enumerate(table.labels):
            for column, cell in zip(table.columns, table.cells[row], strict=True):
                if cell is not None:
                    seeds = " ".join(map(str, table.seeds[row]))
                    spread = "" if cell.deviation is None else repr(cell.deviation)
                    facts = [table.experiment, label, table.protocols[row], column]
                    writer.writerow([*facts, repr(cell.mean), spread, len(table.seeds[row]), seeds, int(cell.best)])
    return text.getvalue()


def _json(tables: list[Table], collection: Collection) -> dict[str, Any]:
    def row(table: Table, number: int) -> dict[str, Any]:
        cells = [None if cell is None else asdict(cell) for cell in table.cells[number]]
        facts = {"label": table.labels[number], "protocol": table.protocols[number], "seeds": table.seeds[number]}
        return facts | {"columns": dict(zip(table.columns, cells, strict=True))}

    return {
        "tables": [
            {"experiment": table.experiment, "caption": table.caption}
            | {"rows": [row(table, number) for number in range(len(table.labels))]}
            for table in tables
        ],
        "incomplete": [{"run": str(store.path), "reason": reason} for store, reason in collection.left_out],
        "notes": collection.notes,
    }

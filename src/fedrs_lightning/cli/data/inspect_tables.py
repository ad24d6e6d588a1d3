"""What `fedrs data inspect` found, as tables that fit a narrow terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedrs_lightning.results.short_text import short_name, short_number

NAME = 24  # letters of a class or client
CLIENTS, WIDE = 60, 24  # rows, and columns, of clients that are shown; --json has all


def show(facts: dict[str, Any]) -> None:
    """Print samples, classes, label sets, days and bands."""
    console = Console()
    clients = facts["clients"]
    synthetic = " (synthetic data)" if facts["synthetic"] else ""
    title = f"{facts['dataset']}{synthetic}: {len(clients)} clients, {facts['kind']}"
    console.print(title, highlight=False, markup=False)
    _samples(console, facts)
    _classes(console, facts)
    if facts["kind"] == "multi-label":
        _label_sets(console, facts)
    if any("days" in split for _, _, split in _splits(facts)):
        _days(console, facts)
    _bands(console, facts)
    if len(clients) > WIDE:
        some = f"tables show {min(CLIENTS, len(clients))} of {len(clients)} clients in rows and {WIDE} in columns"
        console.print(f"\n{some}; --json FILE has all", highlight=False, markup=False)


def _samples(console: Console, facts: dict[str, Any]) -> None:
    own = any("test" in client for client in facts["clients"])
    ratio = facts["largest_to_smallest"]
    weights = "some clients have none to train on"
    if ratio is not None:
        weights = f"weights largest : smallest = {short_number(ratio)}"
    numbers = ("train", "own test", "weight") if own else ("train", "weight")
    table = _table(console, f"samples; {weights}", "client", *numbers, text="lacks in training")
    for client in facts["clients"][:CLIENTS]:
        row = [_client(client), str(client["train"]["num_samples"])]
        row += [str(client["test"]["num_samples"]) if "test" in client else "none"] if own else []
        lacking = client["classes_lacking"]
        known = len(facts["class_names"]) - len(lacking)
        brief = [short_name(name, 18) for name in lacking]
        listed = ", ".join(brief) if len(brief) <= 3 else f"{len(brief)} classes (has {known})"
        table.add_row(*row, f"{100 * client['weight']:.1f}%", listed)
    table.add_section()
    table.add_row("all", str(facts["train"]["num_samples"]))
    for name, title in (("test", "common test set"), ("validation", "validation")):
        if facts[name]["num_samples"]:
            table.add_row(title, str(facts[name]["num_samples"]))
    console.print(table)


def _classes(console: Console, facts: dict[str, Any]) -> None:
    """Classes by split: training data of each client, then the test and validation data of all."""
    columns = [(str(client["id"]), client["train"]["class_counts"]) for client in facts["clients"][:WIDE]]
    common = [("all", facts["train"]["class_counts"])]
    for name, title in (("test", "test"), ("validation", "val")):
        common += [(title, facts[name]["class_counts"])] if facts[name]["num_samples"] else []
    classes = list(enumerate(facts["class_names"]))
    having = "that have each class" if facts["kind"] == "multi-label" else "of each class"
    title = f"training {facts['counted']} {having}, by client (columns: client ids)"
    _wide(console, title, "class", classes, [*columns, *common])
    tested = [client for client in facts["clients"][:WIDE] if "test" in client]
    own = [(str(client["id"]), client["test"]["class_counts"]) for client in tested]
    if own:
        title = f"{facts['counted']} {having} in the own test sets"
        _wide(console, title, "class", classes, own)


def _label_sets(console: Console, facts: dict[str, Any]) -> None:
    title = "label sets: combinations of classes that samples have"
    table = _table(console, title, "client", "split", "sets", text="most frequent (samples)")
    for owner, name, split in _splits(facts):
        found = split["label_sets"]
        if not found["most_frequent"]:
            continue
        first = found["most_frequent"][0]
        text = " + ".join(short_name(word, 20) for word in first["classes"]) or "no class"
        table.add_row(owner, name, str(found["distinct"]), f"{text} ({first['num_samples']})")
    console.print(table)


def _days(console: Console, facts: dict[str, Any]) -> None:
    table = _table(console, "days of acquisition", "client", "split", "days", text="samples of each day")
    for owner, name, split in _splits(facts):
        days = split.get("days", {})
        if days:
            listed = [f"{day} ({count})" for day, count in days.items()]
            shown = listed if len(listed) <= 8 else [*listed[:4], "...", *listed[-3:]]
            table.add_row(owner, name, str(len(days)), ", ".join(shown))
    console.print(table)


def _bands(console: Console, facts: dict[str, Any]) -> None:
    pooled = facts["train"]["bands"]
    part = f"min to max of {facts['pixels_of']}"
    if pooled:
        titles = ("mean", "deviation", "min", "1 %", "50 %", "99 %", "max")
        table = _table(console, f"stored values of each band in all training samples; {part}", "band", *titles)
        for band in pooled:
            values = [band[name] for name in ("mean", "deviation", "min", "p1", "p50", "p99", "max")]
            table.add_row(short_name(band["band"], NAME), *map(short_number, values))
        console.print(table)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for client in [client for client in facts["clients"][:WIDE] if client["train"]["bands"]]:
        groups.setdefault(tuple(band["band"] for band in client["train"]["bands"]), []).append(client)
    for names, members in groups.items():
        for title, key in (("mean", "mean"), ("deviation", "deviation"), ("median", "p50")):
            columns = [(str(client["id"]), [band[key] for band in client["train"]["bands"]]) for client in members]
            text = f"{title} of each band by client (training samples)"
            _wide(console, text, "band", list(enumerate(names)), columns)


def _wide(
    console: Console, title: str, head: str, rows: Sequence[tuple[int, str]], columns: Sequence[tuple[str, Any]]
) -> None:
    """A table with one column a client, continued below where the terminal is too narrow."""
    first = max([len(head), *(min(len(name), NAME) for _, name in rows)])
    cells = []
    for name, content in columns:
        numbers = [content[number] for number, _ in rows]
        cells.append((name, [short_number(one) if one else "-" for one in numbers]))
    start = 0
    while start < len(cells):
        used, stop = first + 4, start
        while stop < len(cells):
            used += 3 + max(len(cells[stop][0]), *(len(cell) for cell in cells[stop][1]))
            if used > console.width and stop > start:
                break
            stop += 1
        names = [name for name, _ in cells[start:stop]]
        table = _table(console, title if not start else f"{title}, continued", head, *names)
        for place, (_, name) in enumerate(rows):
            table.add_row(short_name(name, NAME), *(content[place] for _, content in cells[start:stop]))
        console.print(table)
        start = stop


def _splits(facts: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Owner, name and facts of every split that is shown."""
    found = []
    for client in facts["clients"][:CLIENTS]:
        found += [(_client(client), name, client[name]) for name in ("train", "test") if name in client]
    return found + [("all", name, facts[name]) for name in ("test", "validation") if facts[name]["num_samples"]]


def _client(client: dict[str, Any]) -> str:
    return short_name(named(client), NAME)


def named(client: dict[str, Any]) -> str:
    """Id and name of a client, the id once where the name says it too."""
    return client["name"] if client["name"] == f"client {client['id']}" else f"{client['id']} {client['name']}"


def _table(console: Console, title: str, first: str, *numbers: str, text: str = "") -> Table:
    """A table of one column of names, some of numbers, and one of text where it has a title."""
    console.print(f"\n{title}", highlight=False, markup=False, style="bold")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="left" if name == "split" else "right", no_wrap=True)
    if text:
        table.add_column(text)
    return table

"""Write the option tables of the pages from signatures and docstrings: `make options`.

A page holds a pair of comments, and what stands between them is written anew:

    <!-- options: fedrs_lightning.data.EuroSAT -->
    <!-- end of options -->

A fourth column of the page, such as the source of a default, stays as it stands there.

    python docs/option_tables.py          write
    python docs/option_tables.py --check  exit code 1 and the names of pages whose tables are out of date
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import docstring_parser
import yaml

PAGES = sorted(Path(__file__).resolve().parent.glob("*.md"))
TABLE = re.compile(r"(<!-- options: ([\w.]+) -->\n)(.*?)(<!-- end of options -->)", re.DOTALL)
ROW = re.compile(r"^\| (?:`(\w+)`|option) \|.*\|.*\| (.*) \|$", re.MULTILINE)


def main() -> int:
    """Write, or compare; returns the exit code."""
    old = [path for path in PAGES if renewed(text := path.read_text(encoding="utf-8")) != text]
    if "--check" in sys.argv[1:]:
        print("\n".join(f"{path.name}: option tables are out of date; run make options" for path in old), end="")
        return 1 if old else 0
    for path in old:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{path.name}: option tables written")
    return 0


def renewed(text: str) -> str:
    """A page with its tables as signatures and docstrings have them now."""
    return TABLE.sub(lambda match: f"{match[1]}{table(named(match[2]), further(match[3]))}{match[4]}", text)


def further(text: str) -> dict[str, str]:
    """Cells of the fourth column of a table on a page, by option; that of the head by an empty name."""
    rows = [row for row in text.splitlines() if re.sub(r"\\\|", "", row).count("|") == 5 and not row.startswith("|-")]
    return {found[1] or "": found[2] for row in rows if (found := ROW.match(row))}


def named(path: str) -> Any:
    """The class behind an import path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def table(owner: Any, more: Mapping[str, str] = MappingProxyType({})) -> str:
    """A row an argument: name, default as in YAML, meaning.

    Args:
        owner: class, whose base classes may describe arguments too.
        more: a further cell of each row, by option; of the head by an empty name.

    Raises:
        ValueError: an argument is not described, or has no further cell where others have one.
    """
    meanings = {}
    for base in reversed(owner.__mro__):
        described = docstring_parser.parse(base.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE).params
        meanings |= {each.arg_name: each.description for each in described}
    rows = ["| option | default | meaning |", "|---|---|---|"]
    if more:
        rows = [f"{rows[0]} {more['']} |", f"{rows[1]}---|"]
    for name, parameter in inspect.signature(owner).parameters.items():
        if not meanings.get(name):
            raise ValueError(f"{owner.__name__}: {name} is not described in the docstring")
        meaning = " ".join(str(meanings[name]).split()).replace("|", "\\|").removesuffix(".")
        if more and name not in more:
            raise ValueError(f"{owner.__name__}: {name} has no cell '{more['']}' on the page")
        rows.append(f"| `{name}` | {default(parameter)} | {meaning} |" + (f" {more[name]} |" if more else ""))
    return "\n".join(rows) + "\n"


def default(parameter: inspect.Parameter) -> str:
    """As one writes it in a config."""
    if parameter.default is parameter.empty:
        return "required"
    value = parameter.default
    plain = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
    factory = getattr(plain, "default_factory", None)
    if factory is not None:  # of a data class
        plain = factory()
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
    return f"`{text}`"


if __name__ == "__main__":
    sys.exit(main())

"""Pages of the documentation site that are not files of `docs/`: the front page, two of the repository's own pages, and
the API reference, one page a module. `mkdocs.yml` names this file as its hook.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> Any:
    """Append the API reference to the navigation: a section for each package, in it its modules."""
    tree: dict[str, list[str]] = {}
    for page in reference():
        package = page.split("/")[2] if page.count("/") > 2 else ""
        tree.setdefault(package, []).append(page)
    modules = tree.pop("", [])
    config.nav.append({"API": [*modules, *({name: pages} for name, pages in sorted(tree.items()))]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the files of the repository to which they link."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(config, page, content=LINK.sub(lambda link: link[1] + moved(link[2]) + link[3], text))
        )
        for target in {link[1] for link in LINK.findall(text)} - PAGES.keys():
            if not target.startswith("docs/") and (ROOT / target).is_file():
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    for page, module in reference().items():
        files.append(
            File.generated(config, page, content=f"---\ntitle: {module.rpartition('.')[2]}\n---\n\n::: {module}\n")
        )
    return files


def moved(target: str) -> str:
    """Where a link of one of the repository's pages leads on the site."""
    return PAGES.get(target, target.removeprefix("docs/"))


def reference() -> dict[str, str]:
    """Page of the reference to the module that it documents; packages that hold nothing but a docstring have none."""
    pages = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
            if not ast.parse(path.read_text(encoding="utf-8")).body[1:] and len(parts) > 1:
                continue
        if not any(part.startswith("_") for part in parts):
            pages["/".join(("reference", *parts)) + ("/index.md" if path.stem == "__init__" else ".md")] = ".".join(
                parts
            )
    return pages

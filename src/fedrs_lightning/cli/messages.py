"""What a library raised, as one line for people."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"\s*(?:Subtypes: .*|Given value type: .*|Errors:|Does not validate against any of the Union subtypes)$",
    re.MULTILINE,
)


def plain_message(error: BaseException) -> str:
    """One line from what the parser raised, whatever its form; the walk in `mistakes` has found nothing better to say."""
    text = _NOISE.sub("", str(error))
    text = "\n".join(line for line in text.splitlines() if "NoneType" not in line)
    return " ".join(text.replace("\n- ", "; ").split()).strip("; ") or type(error).__name__


def refusal(error: BaseException) -> str:
    """One line that says why a constructor refused its arguments, behind whatever the parser made of it."""
    found = re.findall(r"class_path='([^']+)'", str(error))
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    text = " ".join(str(inner).split())
    name = found[0].rpartition(".")[2] if found else ""
    return text if not name or text.startswith(name) else f"{name}: {text}"

"""The same bits twice on one rank, and on two ranks that share the device, with deterministic kernels."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_parts.cases import names, play, problem
from gpu_parts.sheet import NotYet, Setting, Sheet


def repeated(setting: Setting, sheet: Sheet) -> None:
    """Every case twice on one rank."""
    fabric = setting.fabric()
    same = 0
    for done, name in enumerate(names(setting), start=1):
        found = []
        try:
            for _ in range(2):
                with setting.scratch() as folder:
                    found.append(play(name, fabric, Path(folder)).digest())
        except Exception as error:  # whatever it is, the other cases are shown too
            sheet.detail(name, {"error": problem(error)})
        else:
            same += found[0] == found[1]
            sheet.detail(name, {"digest": found[0], "again": found[1]})
        sheet.row("cases done", done)
        sheet.row("cases with the same digest twice", same / done, "of those done", at_least=1.0)


def two_ranks(setting: Setting, sheet: Sheet) -> None:
    """Every case on two ranks, against the digests that the part before has left."""
    try:
        known = json.loads((setting.folder / "digests.json").read_text())["details"]
    except FileNotFoundError:
        raise NotYet("part digests has left nothing to compare with") from None
    fabric = setting.fabric(ranks=2)
    same = done = 0
    for name in names(setting):
        if "digest" not in known.get(name, {}):
            continue
        with setting.scratch() as folder:
            shared = fabric.broadcast(folder)
            digest = play(name, fabric, Path(shared)).digest()
            fabric.barrier()
        done, same = done + 1, same + (digest == known[name]["digest"])
        sheet.detail(name, {"digest": digest, "one rank": known[name]["digest"]})
        sheet.row("cases done", done)
        sheet.row("cases with the digest of one rank", same / done, "of those done", at_least=1.0)
    if not done:
        raise NotYet("no case of part digests was finished")

"""`make gpu-check` without a GPU: one line, and small forms of its parts that find what they look for."""

import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_check

    return gpu_check


def test_without_a_gpu_it_ends_in_one_line(check, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for argv, words in (([], "sees no CUDA device"), (["--device", "cpu"], "needs --quick")):
        assert check.main(argv) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert errors.count("\n") == 1
        assert words in errors


def test_a_part_writes_its_sheet(check, tmp_path, capsys):
    out = tmp_path / "new" / "found.json"
    # `two-ranks` alone has no digests to compare with, and says so
    assert check.main(["--device", "cpu", "--quick", "--only", "two-ranks", "eurosat", "--out", str(out)]) == 1
    parts = json.loads(out.read_text())["parts"]
    assert (parts["two-ranks"]["status"], parts["eurosat"]["status"]) == ("not offered", "done")
    assert "nothing to compare" in parts["two-ranks"]["reason"]
    rows = {row["name"]: row["value"] for row in parts["eurosat"]["rows"]}
    first, later = rows["first round"], rows["a round after it, checkpoints included"]
    assert rows["all 40 rounds at that rate"] * 60 == pytest.approx(first + 39 * later)
    table = capsys.readouterr().out
    assert "MISS  two-ranks  not offered" in table
    assert "ok    eurosat    done" in table


def test_a_part_that_is_out_of_time_ends_with_what_it_wrote(check, tmp_path, capsys):
    out = tmp_path / "found.json"
    assert check.main(["--device", "cpu", "--quick", "--only", "waits", "--limit", "0.2", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["parts"]["waits"]["status"] == "out of time"
    assert "limit 0.2 s" in capsys.readouterr().out


def test_a_missed_goal_is_a_miss(check, tmp_path):
    from gpu_parts.sheet import Sheet

    sheet = Sheet(tmp_path / "sheet.json")
    sheet.row("shares", 1.5, at_most=1.0)
    sheet.row("rates", 0.5, "images/s")
    found = {"part": {"status": "done", "reason": "", "seconds": 1.0} | json.loads(sheet.path.read_text())}
    assert not check.met(found)
    assert "MISS" in check.table(found)
    sheet.row("shares", 1.0, at_most=1.0)  # again, in place of the first
    found["part"] |= json.loads(sheet.path.read_text())
    assert check.met(found)
    assert [row["value"] for row in found["part"]["rows"]] == [1.0, 0.5]
    assert not check.met({"part": found["part"] | {"status": "failed"}})


def test_waits_are_counted_where_they_are(check, tmp_path):
    from fedrs_lightning.states import first_not_finite
    from gpu_parts.sheet import Setting
    from gpu_parts.waits import Count, counting

    values, mask = torch.ones(3), torch.tensor([True, False, True])
    count = Count()
    step = count.within("step", lambda: values[mask].sum().item())
    visit = count.within("visit", lambda: (step(), first_not_finite({"a": values})))
    with counting(Setting("cpu", True, tmp_path), count):
        visit()
        values + values
    assert (count.steps, count.visits) == (1, 1)
    assert (count.total("step"), count.total("visit"), count.total("round")) == (2, 1, 0)
    assert [line.partition(":")[0] for where, line in count.waits if where == "visit"] == ["states.py"]

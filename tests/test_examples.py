"""The notebooks in examples/ run from top to bottom, and show what they say."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def cells(path, kind):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_fedavg_and_fedmad(tmp_path, monkeypatch, capsys):
    """Plain Python in one namespace, as in a kernel: a table of both methods, a curve of each, weights that add up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRS_CACHE", str(tmp_path / "cache"))
    namespace = {}
    printed = []
    for source in cells(EXAMPLES / "fedavg_and_fedmad.ipynb", "code"):
        exec(compile(source, "fedavg_and_fedmad.ipynb", "exec"), namespace)
        printed.append(capsys.readouterr().out)
    lines = {line.get_label(): line.get_ydata() for line in namespace["axes"].get_lines()}
    assert sorted(lines) == ["FedAvg", "FedMAD"]
    assert [len(values) for values in lines.values()] == [8, 8]
    (table,) = [text for text in printed if "| FedAvg |" in text]
    shown = dict(re.findall(r"^\| (\w+) \| \**([\d.]+)", table, re.MULTILINE))
    assert {method: float(value) for method, value in shown.items()} == {
        method: pytest.approx(values[-1], abs=0.005) for method, values in lines.items()
    }
    weights = [float(value) for value in re.findall(r"weight ([\d.]+)", printed[-1])]
    assert len(weights) == 4
    assert sum(weights) == pytest.approx(1, abs=0.021)
    plt.close(namespace["figure"])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_plain_python_with_output(path):
    """No commands of a shell or a kernel; what is stored as output is no error and names no folder of a machine."""
    assert not any(re.search(r"^\s*[!%]", source, re.MULTILINE) for source in cells(path, "code"))
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    text = json.dumps([output for output in outputs if output["output_type"] == "stream"])
    assert not re.search(r"/(?:root|home|work|tmp|Users)/", text)

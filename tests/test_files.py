"""Files appear whole or not at all."""

import re
import subprocess
import sys

import pytest

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import atomic_path, misfit, read_json, read_yaml, write_json


@pytest.mark.parametrize("durable", [False, True])
def test_a_failed_write_leaves_the_old_file(durable, tmp_path):
    path = tmp_path / "deep" / "value.json"
    write_json(path, {"a": 1}, durable=durable)
    with pytest.raises(ValueError, match="Out of range"):
        write_json(path, {"a": float("nan")}, durable=durable)

    def interrupted() -> None:
        with atomic_path(path, durable=durable) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read_json(path) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]


def test_unreadable_json_is_named(tmp_path):
    with pytest.raises(RunError, match=r"gone\.json: no such file"):
        read_json(tmp_path / "gone.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(RunError, match=r"bad\.json:1: not valid JSON"):
        read_json(tmp_path / "bad.json")


PAIRS = zip("abcdefgh", "bcdefghi", strict=True)
NINE = "".join(f"{name}: &{name} [{', '.join(['*' + above] * 9)}]\n" for above, name in PAIRS)
YAML = [
    ("a: 1\nb: [1\n", 3, "expected ',' or ']'"),
    ("a: &a [1, *a]\n", 1, "an alias names what it stands in"),
    (f"a: &a [x, x, x, x, x, x, x, x, x]\n{NINE}", None, "its aliases stand for more than 1000000 values"),
    ("a: " + "[" * 70 + "]" * 70, 1, "nested more than 60 levels deep"),
    ("a: " + "[" * 100_000, None, "nested too deeply"),
    ("a: 2026-02-30\n", None, "a value cannot be read: day is out of range"),
    ("a: " + "9" * 5000, None, "a value cannot be read: Exceeds the limit"),
    ("{[1, 2]: 3}", 1, "found unhashable key"),
    ("a: \0", None, "special characters are not allowed"),
    ("a: 1\n---\nb: 2\n", 2, "but found another document"),
]


@pytest.mark.parametrize(("text", "line", "words"), YAML, ids=[words for _, _, words in YAML])
def test_yaml_has_limits_and_names_the_line(tmp_path, text, line, words):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(RunError) as error:
        read_yaml(path)
    assert str(error.value).startswith(f"{path}:{line}: " if line else str(path))
    assert words in str(error.value)


def test_yaml_may_share_and_merge(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 1}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n"a": 1,\n}', "x.json:3: not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ("9" * 5000, "a number is too long"),
        (b"\xff\xfe", "not text in UTF-8"),
    ],
)
def test_json_has_limits(tmp_path, text, words):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RunError, match=re.escape(words)):
        read_json(path)


@pytest.mark.parametrize(
    ("value", "shape", "problem"),
    [
        ({"a": 1}, {"a": int}, None),
        ({"a": True}, {"a": int}, "a is true"),
        ({"a": {"b": [1, "x"]}}, {"a": {"b": [int]}}, 'a.b[1] is "x"'),
        ({"a": {"b": 1}}, {"a": {"c!": int}}, "a.c is missing"),
        ({"a": {"b": [1]}}, {"a": {...: int}}, "a.b is a list"),
        ({"a": 1}, {"a": {}}, "a is not a mapping"),
        ({"a": 1}, {"a": [int]}, "a is not a list"),
        ([], {}, "the file is not a mapping"),
    ],
)
def test_shapes(value, shape, problem):
    assert misfit(value, shape) == problem


def test_files_follow_the_umask(tmp_path):
    code = (
        "import os, sys\nos.umask(0o022)\nfrom pathlib import Path\nfrom fedrs_lightning.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as temporary:\n    temporary.touch(0o600)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], check=True)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644

"""Files appear whole or not at all."""

import pytest

from fedrs_lightning.errors import RunError
from fedrs_lightning.files import atomic_path, read_json, write_json


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
    with pytest.raises(RunError, match=r"bad\.json: not valid JSON"):
        read_json(tmp_path / "bad.json")

"""Tables of any bytes: columns that fit together, or one line."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from fedrs_lightning.data.archives.own.listing import scan_table
from fedrs_lightning.data.archives.tables import read_lines, read_table

from .effort import answer, tried

CELL = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).map(str.strip)


@tried()
@given(
    rows=st.lists(st.lists(CELL, min_size=3, max_size=3), min_size=1, max_size=5),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_is_written_is_read(tmp_path, rows, mark, end):
    text = io.StringIO()
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([["a", "b", "c"], *rows])
    path = tmp_path / "table.csv"
    path.write_bytes(text.getvalue().encode("utf-8-sig" if mark else "utf-8"))
    columns, _ = read_table(path)
    assert [list(row) for row in zip(*columns.values(), strict=True)] == rows


PIECES = st.sampled_from(
    [b",", b"\n", b"\r", b'"', b";", b"\t", b"\0", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfc", b"a", b"1"]
)


@tried()
@given(
    content=st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=25).map(b"".join)),
    name=st.sampled_from(["t.csv", "t.parquet"]),
)
def test_any_bytes(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    found = answer(lambda: read_table(path), name)
    if found is not None:
        columns, where = found
        lengths = {len(values) for values in columns.values()}
        assert len(lengths) == 1
        assert all(str(path) in where(row) for row in range(min(lengths)))
    assert all(line == line.strip() != "" for line in answer(lambda: read_lines(path), name) or ())


@tried()
@given(
    head=st.lists(st.sampled_from(["path", "label", "labels", "client", "split", "x"]), min_size=1, max_size=4),
    rows=st.lists(st.lists(st.sampled_from(["a.png", "forest", "train", "", "..", "/", "x;y", "\ud7ff"]), max_size=4)),
    multi=st.booleans(),
)
def test_any_listing(tmp_path, head, rows, multi):
    (tmp_path / "a.png").write_bytes(b"")
    text = "\n".join(",".join(row) for row in [head, *rows])
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    found = answer(lambda: scan_table(str(tmp_path), "t.csv", ["forest", "x", "y"], multi, ";"), tmp_path)
    if found is not None:
        assert found.ids == ["a.png"]
        assert len(found.labels) == 1

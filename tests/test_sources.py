import builtins
import csv
import io
import itertools
import json
import logging
import os
import threading
import time
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelmesh import streams
from kernelmesh.errors import InvalidRow
from kernelmesh.streams import ArrayStream, Batch, Columns, FileSource, LineSource, Paced, Source, StreamSlice, read_stdin
from kernelmesh.streams.line_parser import MAX_LINE_BYTES, LineParser

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

VALUES = Columns(points=("a", "b"), targets=("y", "z"), labels=False)
LABELS = Columns(points=("a", "b"), targets=("y",), labels=True, outputs=3)
CLASSES = Columns(points=("a", "b"), targets=("y",), labels=True, classes=("no", "yes", "may,be"))
FORMATS = ["csv", "ndjson", "parquet"]

quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
finite = st.floats(allow_nan=False, allow_infinity=False)
tables = st.lists(st.tuples(finite, finite, finite, finite), max_size=40)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="kernelmesh.streams")


def csv_text(rows, header=("a", "b", "y", "z")):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([[repr(v) if isinstance(v, float) else v for v in row] for row in rows])
    return text.getvalue()


def write(path, rows, format, header=("a", "b", "y", "z")):
    path = path / f"samples.{format}"
    if format == "csv":
        path.write_text(csv_text(rows, header))
    elif format == "ndjson":
        path.write_text("".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows))
    else:
        table = {name: [row[i] for row in rows] for i, name in enumerate(header)}
        pq.write_table(pa.table(table if rows else {n: pa.array([], pa.float64()) for n in header}), path, row_group_size=7)
    return path


def drain(source):
    """All mini-batches that there are now."""
    return list(iter(source.take, None))


def same(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.points.dtype == b.points.dtype == np.float64
        assert a.targets.dtype == b.targets.dtype
        assert a.points.shape == b.points.shape
        assert a.points.tobytes() == b.points.tobytes()  # to the last bit, and with the sign of zero
        assert a.targets.shape == b.targets.shape
        assert a.targets.tobytes() == b.targets.tobytes()


def stream(rows, size):
    array = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return ArrayStream(array[:, :2], array[:, 2:], batch_size=size)


@pytest.mark.parametrize("rows", [0, 1, 9, 11, 12])
@pytest.mark.parametrize(("start", "stop"), [(0, 100), (0, 3), (2, 5), (3, 4), (4, 2), (100, 200)])
def test_a_slice_of_a_stream_knows_its_rows(rows, start, stop):
    part = StreamSlice(ArrayStream(np.zeros((rows, 1)), np.zeros(rows), batch_size=4, passes=3), start, stop)
    batches = list(part)
    assert len(part) == len(batches)
    assert part.rows == sum(len(batch.points) for batch in batches)


@pytest.mark.parametrize("format", FORMATS)
@quick
@given(rows=tables, size=st.integers(1, 12))
def test_a_file_gives_the_mini_batches_of_its_rows(format, rows, size, tmp_path):
    source = FileSource(write(tmp_path, rows, format), VALUES, batch_size=size)
    assert isinstance(source, Source)
    assert source.pending is None
    assert not source.ended or not rows
    same(drain(source), stream(rows, size))
    assert source.ended
    assert source.refused == 0


@pytest.mark.parametrize("format", FORMATS)
@quick
@given(data=st.data(), rows=tables, size=st.integers(1, 7), follow=st.booleans())
def test_a_fresh_source_goes_on_from_any_position(format, data, rows, size, follow, tmp_path):
    mixed = [("?" if data.draw(st.integers(0, 5)) == 0 and format != "parquet" else row[0], *row[1:]) for row in rows]
    path = write(tmp_path, mixed, format)

    def fresh():
        return FileSource(path, VALUES, batch_size=size, follow=follow and format != "parquet")

    whole = fresh()
    batches, positions = [], [json.loads(json.dumps(whole.position))]
    while (batch := whole.take()) is not None:
        batches.append(batch)
        positions.append(json.loads(json.dumps(whole.position)))
    assert [position["row"] for position in positions] == list(np.cumsum([0, *(len(b.points) for b in batches)]))
    stop = data.draw(st.integers(0, len(batches)))
    for source in (fresh(), whole):  # also one that is further on
        source.seek(positions[stop])
        assert source.position == positions[stop]
        same(drain(source), batches[stop:])
        assert source.refused == whole.refused
        assert source.position == positions[-1]


@pytest.mark.parametrize("format", ["csv", "ndjson"])
@quick
@given(data=st.data(), rows=tables, size=st.integers(1, 5))
def test_a_growing_file_gives_the_rows_of_the_whole(format, data, rows, size, tmp_path):
    content = write(tmp_path, rows, format).read_bytes()
    path = tmp_path / "growing"
    path.unlink(missing_ok=True)
    source = FileSource(path, VALUES, format=format, batch_size=size, follow=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    batches = drain(source)
    for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with open(path, "ab") as file:
            file.write(content[start:stop])
        batches += drain(source)
    full = len(rows) // size * size
    same(batches, stream(rows[:full], size))
    assert source.refused == 0
    assert not source.ended


def test_a_parquet_file_that_is_damaged_or_to_be_followed_is_refused(tmp_path):
    path = write(tmp_path, [(1.0, 2.0, 3.0, 4.0)], "parquet")
    with pytest.raises(ValueError, match="follow must be False with a Parquet file"):
        FileSource(path, VALUES, follow=True)
    content = path.read_bytes()
    for damaged in (content[:-10], content[:-200] + bytes(150) + content[-50:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="must be a Parquet file"):
            FileSource(path, VALUES)


garbage = st.one_of(
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from(
        [b"1,2,3", b"1,2,3,4,5", b"nan,0,0,0", b"inf,0,0,0", b"1_0,1,1,1", b'"1,2,3,4', b'1,2,3,4"', b"\xff,1,1,1", b",,,"]
    ),
    st.sampled_from([b"{", b"[1]", b"3", b"null", b'{"a": 1}', b'{"a": true, "b": 1, "y": 1, "z": 1}', b"[" * 50000]),
    st.sampled_from([b'{"a": NaN, "b": 1, "y": 1, "z": 1}', b'{"a": 1' + b"0" * 400 + b', "b": 1, "y": 1, "z": 1}']),
    st.just(b'{"a": ' + b"1" * 5000 + b', "b": 1, "y": 1, "z": 1}'),
)


def usable(line, format):
    parser = LineParser(VALUES, format)
    if format == "csv":
        parser.read_header(b"a,b,y,z", owner="test", table="test")
    return bool(parser.parse([line]).valid.size)


@pytest.mark.parametrize("format", ["csv", "ndjson"])
@quick
@given(data=st.data(), rows=st.lists(st.tuples(finite, finite, finite, finite), max_size=12), size=st.integers(1, 5))
def test_invalid_lines_are_dropped_and_counted(format, data, rows, size, tmp_path):
    head, *lines = (b"\n" + write(tmp_path, rows, "ndjson").read_bytes()).split(b"\n")
    if format == "csv":
        head, *lines = write(tmp_path, rows, format).read_bytes().split(b"\n")
    lines.pop()
    bad = 0
    for line in data.draw(st.lists(garbage, max_size=8)):
        if not usable(line, format):
            bad += bool(line.strip())
            lines.insert(data.draw(st.integers(0, len(lines))), line)
    path = tmp_path / f"mixed.{format}"
    path.write_bytes(b"\n".join([head, *lines]) if format == "csv" else b"\n".join(lines))
    source = FileSource(path, VALUES, batch_size=size)
    same(drain(source), stream(rows, size))
    assert source.refused == bad


@pytest.mark.parametrize("columns", [VALUES, LABELS, CLASSES], ids=["values", "labels", "classes"])
@pytest.mark.parametrize("format", ["csv", "ndjson"])
@quick
@given(data=st.data())
def test_reading_many_lines_at_once_is_reading_them_one_by_one(columns, format, data):
    cell = st.one_of(
        finite.map(repr),
        st.sampled_from(
            ["0", "1", "2", "2.0", "-0.0", " 1 ", "1e-400", "1e400", "", "no", "yes", "1_0", "٣", "nan", "0x1p3"]
        ),
        st.floats().map(lambda v: f"{v:.3g}"),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=5),
    )
    if format == "csv":
        row = st.lists(cell, min_size=4, max_size=4).map(lambda cells: csv_text([cells]).partition("\n")[2][:-1])
        line = st.one_of(row, row, row, st.lists(cell, max_size=5).map(",".join)).map(lambda text: text.replace("\n", ""))
    else:
        value = st.one_of(cell, st.floats(), st.integers(), st.booleans(), st.none(), st.just([]))
        line = st.fixed_dictionaries(dict.fromkeys("abyz", value)).map(json.dumps)
    lines = [text.encode() + ending for text in data.draw(st.lists(line, max_size=6)) for ending in (b"", b"\r")]
    good = [
        {"csv": b'0.1,-0.0,1,"3"', "ndjson": b'{"a": 0.1, "b": -0.0, "y": 1, "z": "3"}'}[format],
        {"csv": b"1e-3,7,yes,1", "ndjson": b'{"a": 1e-3, "b": 7, "y": "yes", "z": 1}'}[format],
    ]
    lines = good * data.draw(st.integers(0, 40)) + lines + good
    parser = LineParser(columns, format)
    if format == "csv":
        parser.read_header(b"a,b,y,z", owner="test", table="test")
    at_once = parser.parse(lines)
    with mock.patch.object(streams.columns, "_column", number_by_number):
        singly = [parser.parse([line]) for line in lines]
    same([at_once.batch], [Batch(*map(np.concatenate, zip(*(each.batch for each in singly), strict=True)))])
    assert at_once.valid.tolist() == [row for row, each in enumerate(singly) if each.valid.size]
    assert at_once.invalid == [(row, reason) for row, each in enumerate(singly) for _, reason in each.invalid]


def number_by_number(name, values):
    return np.array([streams.columns._number(name, value) for value in values])


def test_numbers_of_any_type_in_a_parquet_file_are_read_and_others_are_refused(tmp_path):
    path = tmp_path / "samples.parquet"
    table = {
        "a": pa.array([1, 2, None, 4, 5], pa.int64()),
        "b": pa.array([0.5, 1.5, 2.5, float("nan"), 4.5], pa.float32()),
        "y": pa.array([0, 1, 0, 0, 7], pa.uint8()),
    }
    pq.write_table(pa.table(table), path)
    source = FileSource(path, LABELS)
    same(drain(source), [Batch(np.array([[1, 0.5], [2, 1.5]]), np.array([0, 1]))])
    assert source.refused == 3
    assert source.position["offset"] == 2
    named = Columns(points=("a", "b"), targets=("y",), labels=True, classes=("1", "0"))
    source = FileSource(path, named)
    same(drain(source), [Batch(np.array([[1, 0.5], [2, 1.5]]), np.array([1, 0]))])
    assert source.refused == 3


def test_class_names_and_class_numbers():
    assert CLASSES.read({"a": 1, "b": "2", "y": "may,be"}) == ([1.0, 2.0], 2)
    assert CLASSES.outputs == 3
    assert LABELS.read({"a": 1, "b": 2, "y": "2.0"}) == ([1.0, 2.0], 2)
    flags = Columns(points=("a",), targets=("y",), labels=True, classes=("false", "true", "3"))
    assert [flags.read({"a": 0, "y": value})[1] for value in (True, False, 3)] == [1, 0, 2]
    open_ended = Columns(points=("a",), targets=("y",), labels=True)
    assert open_ended.read({"a": 0, "y": 12345})[1] == 12345
    assert VALUES.outputs == 2


@pytest.mark.parametrize(
    ("columns", "record", "message"),
    [
        (LABELS, {"a": 1, "b": 2}, "column 'y' is missing; the columns are 'a', 'b'"),
        (LABELS, {"a": 1, "b": True, "y": 0}, "column 'b' must be a finite number, got True"),
        (LABELS, {"a": float("inf"), "b": 1, "y": 0}, "column 'a' must be a finite number, got inf"),
        (LABELS, {"a": 10**400, "b": 1, "y": 0}, "column 'a' must be a finite number, got a number too large for a float"),
        (LABELS, {"a": 1, "b": 1, "y": 3}, "column 'y' must be a class number 0..2, got 3"),
        (CLASSES, {"a": 1, "b": 1, "y": "?"}, "column 'y' must be one of 'no', 'yes', 'may,be', got '?'"),
    ],
)
def test_a_bad_row_is_reported_by_column_rule_and_value(columns, record, message):
    with pytest.raises(InvalidRow) as caught:
        columns.read(record)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"points": ()}, "points must be one or more distinct names"),
        ({"points": ("a", "a")}, "points must be one or more distinct names"),
        ({"targets": ("a",)}, "targets must differ from the points"),
        ({"targets": ("y", "z")}, "targets must be a single column when labels is True"),
        ({"labels": 1}, "labels must be True"),
        ({"labels": False, "outputs": 2}, "outputs must be 1, the number of target columns"),
        ({"labels": False, "classes": ("u", "v")}, "classes must be None"),
        ({"classes": ("u", "v"), "outputs": 3}, "outputs must be 2, the number of classes"),
        ({"outputs": 0}, "outputs must be an integer >= 1"),
    ],
)
def test_columns_check_their_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Columns(**{"points": ("a", "b"), "targets": ("y",), "labels": True, **settings})


def test_a_byte_order_mark_and_a_last_line_without_newline_do_no_harm(tmp_path):
    for format, text in (("csv", "a,b,y\n1,2,0\n3,4,1"), ("ndjson", '{"a":1,"b":2,"y":0}\n\n{"a":3,"b":4,"y":1}')):
        path = tmp_path / f"samples.{format}"
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert drain(FileSource(path, LABELS))[0].points.tolist() == [[1, 2], [3, 4]]
        following = FileSource(path, LABELS, batch_size=1, follow=True)
        assert len(drain(following)) == 1
        with open(path, "ab") as file:
            file.write(b"\n")
        assert len(drain(following)) == 1


@pytest.mark.parametrize("follow", [False, True])
def test_endless_lines_do_not_fill_the_memory(follow, tmp_path):
    path = tmp_path / "samples.csv"
    fits, exceeds = MAX_LINE_BYTES - len("1,2,0,"), MAX_LINE_BYTES - len("1,2,0,") + 1
    lines = [
        "a,b,y,n",
        "1,2,0,",
        f"3,4,0,{'x' * 3 * MAX_LINE_BYTES}",
        "5,6,0,",
        f"7,8,0,{'x' * exceeds}",
        f"9,9,0,{'x' * fits}",
        "0,0,0,",
    ]
    path.write_text("\n".join(lines) + "\n")
    source = FileSource(path, LABELS, batch_size=1, follow=follow)
    found, position = [], None
    while len(found) < 3:
        if (batch := source.take()) is not None:
            found.append(batch.points.tolist()[0])
            position = source.position if len(found) == 1 else position
    assert found == [[1, 2], [5, 6], [0, 0]]  # the field limit of the csv module refuses even what fits
    assert source.refused == 3
    assert source.position["line"] == 8
    again = FileSource(path, LABELS, batch_size=1, follow=follow)
    again.seek(position)
    assert again.take().points.tolist() == [[5, 6]]
    lines = LineSource(LABELS, format="csv", batch_size=1)
    content = path.read_bytes()
    for start in range(0, len(content), 100_000):
        lines.feed(content[start : start + 100_000])
    lines.finish()
    assert [batch.points.tolist()[0] for batch in drain(lines)] == found
    assert lines.refused == 3


def test_the_log_names_the_file_the_line_and_the_reason_and_stays_short(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="kernelmesh.streams")
    path = tmp_path / "samples.csv"
    path.write_text("a,b,y\n" + "1,2,0\nx,2,0\n" * 1234)
    source = FileSource(path, LABELS)
    drain(source)
    assert source.refused == 1234
    assert len(caplog.messages) == 5 + 3
    assert caplog.messages[1] == (f"{path}, line 5: dropped (2 so far): column 'a' must be a finite number, got 'x'")
    assert "line 2001: dropped (1000 so far)" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("format", "follow"), [("csv", False), ("csv", True), ("ndjson", False), ("ndjson", True), ("parquet", False)]
)
def test_a_file_that_is_another_one_is_refused(format, follow, tmp_path):
    rows = [(float(i), 1.0, 2.0, 3.0) for i in range(100)]
    path = write(tmp_path, rows, format)
    source = FileSource(path, VALUES, batch_size=60, follow=follow)
    source.take()
    position = source.position

    write(tmp_path, rows[:5], format)
    with pytest.raises(ValueError, match="it was replaced or truncated"):
        FileSource(path, VALUES, batch_size=4, follow=follow).seek(position)
    if follow:
        with pytest.raises(ValueError, match="it was replaced or truncated"):
            source.take()

    write(tmp_path, [(-1.0, *row[1:]) for row in [*rows, *rows]], format)
    with pytest.raises(ValueError, match="must begin as it did when it was read"):
        FileSource(path, VALUES, batch_size=4, follow=follow).seek(position)
    if follow:
        with pytest.raises(ValueError, match="to start over"):
            source.take()

    if follow:  # it may be recognized only once it is there
        path.unlink()
        late = FileSource(path, VALUES, batch_size=4, follow=True)
        late.seek(position)
        assert late.take() is None
        assert late.position == position
        write(tmp_path, rows, format)
        assert late.take().points[:, 0].tolist() == [60, 61, 62, 63]
        late.seek(position)
        path.unlink()
        write(tmp_path, [(-1.0, *row[1:]) for row in [*rows, *rows]], format)
        with pytest.raises(ValueError, match="must begin as it did when it was read"):
            late.take()


def test_unusable_files_are_refused(tmp_path):
    path = tmp_path / "samples.csv"
    with pytest.raises(ValueError, match="path must be a file"):
        FileSource(path, VALUES)
    with pytest.raises(ValueError, match="format must be 'csv', 'ndjson' or 'parquet'"):
        FileSource(tmp_path / "samples.txt", VALUES)
    with pytest.raises(ValueError, match="path must be a regular file"):
        FileSource(tmp_path, VALUES, format="csv")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="LineSource"):
        FileSource(tmp_path / "pipe", VALUES, format="csv", follow=True)
    for content, message in (
        ("", r"FileSource: points must name columns of .*samples.csv, got 'a'; its columns are none"),
        ("a,b,z\n", "FileSource: targets must name columns of .*samples.csv, got 'y'; its columns are 'a', 'b', 'z'"),
        ("a,b,Y,z\n", r"targets must name .*, got 'y'; did you mean Y\? its columns are 'a', 'b', 'Y', 'z'"),
        ("a,b,y,z,a\n", "points must name columns that appear only once in .*samples.csv, got 'a'"),
        ('a,b,"y\n', "the header of .*samples.csv must be a line of CSV"),
        (f"{'a,' * 1000}\n", r"its columns are ('a', )+.*\.\.\.$"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            FileSource(path, VALUES)
    path.write_text("a,b")
    source = FileSource(path, VALUES, follow=True)
    assert source.take() is None
    path.write_text("a,b\n")
    with pytest.raises(ValueError, match=r"targets must name columns of .*, got 'y'"):
        source.take()
    path.write_text("a,b,y,z\n1,2,3,4\n")
    source = FileSource(path, VALUES)
    for change in ({"offset": -1}, {"row": "1"}, {"line": 0}, {"head": None}, {"head": {"bytes": 0}}):
        with pytest.raises(ValueError, match=next(iter(change))):
            source.seek({**source.position, **change})
    with pytest.raises(ValueError, match="pending must be None"):
        source.seek(source.position, Batch(np.zeros((1, 2)), np.zeros((1, 2))))
    with pytest.raises(ValueError, match=r"targets must name columns of .*, got 'z'; its columns are 'a', 'b', 'y'"):
        FileSource(write(tmp_path, [(1.0, 2.0, 3.0)], "parquet", header="aby"), VALUES)


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def fake(name, *rest, **more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    path = write(tmp_path, [(1.0, 2.0, 3.0, 4.0)], "parquet")
    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(ImportError, match=r"pip install 'kernelmesh\[parquet\]'"):
        FileSource(path, VALUES)


@pytest.mark.parametrize("kind", [*FORMATS, "lines", "paced"])
@quick
@given(data=st.data(), rows=tables, size=st.integers(1, 7))
def test_a_mini_batch_that_is_given_back_comes_again(kind, data, rows, size, tmp_path):
    if kind in FORMATS:
        source = FileSource(write(tmp_path, rows, kind), VALUES, batch_size=size)
    else:
        lines = LineSource(VALUES, format="csv", batch_size=size)
        lines.feed(csv_text(rows).encode())
        lines.finish()
        source = lines if kind == "lines" else Paced(lines, 1, clock=itertools.count(step=1000).__next__)
    source.give_back()  # nothing to give back yet
    batches = []
    while not source.ended:
        position, waiting = source.position, source.pending
        batch = source.take()
        if batch is None:
            continue
        batches.append(batch)
        if data.draw(st.booleans()):
            for _ in range(data.draw(st.integers(1, 2))):  # only the newest can be given back
                source.give_back()
            batches.pop()
            assert not source.ended
            assert source.position == position
            same([waiting] if waiting else [], [source.pending] if source.pending else [])
    same(batches, stream(rows, size))


@pytest.mark.parametrize("format", ["csv", "ndjson"])
@quick
@given(data=st.data(), rows=tables, size=st.integers(1, 7))
def test_lines_give_the_mini_batches_of_the_file_whatever_the_pieces(format, data, rows, size, tmp_path):
    content = write(tmp_path, rows, format).read_bytes()
    content = content if data.draw(st.booleans()) else content.removesuffix(b"\n")
    source = LineSource(VALUES, format=format, batch_size=size)
    assert isinstance(source, Source)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    batches = []
    for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
        source.feed(content[start:stop])
        if data.draw(st.booleans()):
            batches += drain(source)
    assert not source.ended
    source.finish()
    same(batches + drain(source), stream(rows, size))
    assert source.ended


@quick
@given(rows=tables, size=st.integers(1, 7), stop=st.integers(0, 40))
def test_waiting_rows_are_kept_over_a_restart(rows, size, stop):
    head, *lines = csv_text(rows).encode().splitlines(keepends=True)
    first, second = (LineSource(VALUES, format="csv", batch_size=size) for _ in range(2))
    first.feed(head + b"".join(lines[:stop]))
    batches = drain(first)
    second.feed(head + b"".join(lines[stop:]))  # these may already be there when the others are put back
    second.seek(json.loads(json.dumps(first.position)), first.pending)
    assert second.position == {"row": sum(len(batch.points) for batch in batches)}
    second.finish()
    same(batches + drain(second), stream(rows, size))
    assert second.position == {"row": len(rows)}
    assert second.pending is None


def test_pending_rows_must_fit_the_columns():
    source = LineSource(LABELS, format="csv")
    for points, targets in ((np.zeros((2, 3)), [0, 1]), (np.zeros((2, 2)), [0, 3]), (np.zeros((2, 2)), [0])):
        with pytest.raises(ValueError, match="pending"):
            source.seek({"row": 0}, Batch(points, np.array(targets)))


def test_a_full_queue_drops_the_oldest_rows():
    source = LineSource(LABELS, format="csv", batch_size=2, max_pending=10)
    source.feed(b"a,b,y\n" + b"".join(b"%d,0,1\n" % i for i in range(25)))
    assert source.dropped == 15
    assert source.pending.points[:, 0].tolist() == list(range(15, 25))
    source.feed(b"25,0,1\n")
    assert source.dropped == 16
    with pytest.raises(ValueError, match="max_pending must be an integer >= 64"):
        LineSource(LABELS, format="csv", max_pending=63)
    with pytest.raises(ValueError, match="format"):
        LineSource(LABELS, format="parquet")


def test_standard_input_waits_for_room_and_loses_nothing():
    rows = [(float(i), i / 2, 0.0, 1.0) for i in range(1000)]
    source = LineSource(VALUES, format="csv", batch_size=8, max_pending=16)
    thread = read_stdin(source, io.BytesIO(csv_text(rows).encode()))
    batches, until = [], time.monotonic() + 5
    while not source.ended:
        assert time.monotonic() < until
        pending = source.pending
        assert pending is None or len(pending.points) <= 17  # one more if the last line has no newline
        batch = source.take()
        if batch is None:
            time.sleep(1e-4)
        else:
            batches.append(batch)
    thread.join(5)
    same(batches, stream(rows, 8))
    assert source.dropped == 0


def test_take_raises_for_a_wrong_header():
    source = LineSource(VALUES, format="csv")
    read_stdin(source, io.BytesIO(b"a,b,c\n1,2,3\n")).join(5)
    assert not source.ended
    with pytest.raises(ValueError, match=r"targets must name columns of .*, got 'y'"):
        source.take()
    direct = LineSource(VALUES, format="csv")
    with pytest.raises(ValueError, match=r"targets must name columns of .*, got 'y'"):
        direct.feed(b"a,b,c\n")
    unfinished = LineSource(VALUES, format="csv")
    unfinished.feed(b"a,b,c")
    unfinished.finish()
    with pytest.raises(ValueError, match=r"targets must name columns of .*, got 'y'"):
        unfinished.take()
    done = LineSource(VALUES, format="ndjson")
    done.finish()
    with pytest.raises(ValueError, match="feed must come before finish"):
        done.feed(b"{}")


def test_closing_releases_a_blocked_feeder():
    source = LineSource(LABELS, format="csv", batch_size=1, max_pending=2)
    feeder = threading.Thread(target=source.feed, args=(b"a,b,y\n" + b"1,2,0\n" * 10,), kwargs={"block": True}, daemon=True)
    feeder.start()
    feeder.join(0.05)
    assert feeder.is_alive()
    source.close()
    feeder.join(5)
    assert not feeder.is_alive()
    assert source.take() is None
    assert source.ended
    source.feed(b"ignored\n")


@settings(max_examples=60)
@given(waits=st.lists(st.floats(0, 3), min_size=1, max_size=40), rate=st.floats(0.5, 50), size=st.integers(1, 6))
def test_no_more_samples_than_the_rate_allows(waits, rate, size):
    now = 100.0
    lines = LineSource(LABELS, format="csv", batch_size=size)
    lines.feed(b"a,b,y\n" + b"1,2,0\n" * 400)
    source = Paced(lines, rate, clock=lambda: now)
    handed = 0
    for wait in waits:
        now += wait
        batch = source.take()
        assert handed <= rate * (now - 100) * (1 + 1e-9) + size
        handed += 0 if batch is None else len(batch.points)
    while now < 200 and handed < 300:  # polled often, it comes close to the rate
        now += 0.1 * size / rate
        batch = source.take()
        handed += 0 if batch is None else len(batch.points)
    if now >= 200:
        assert handed >= 0.5 * rate * (now - 100 - sum(waits))


def test_a_paced_source_passes_everything_else_on(tmp_path):
    path = write(tmp_path, [(float(i), 1.0, 2.0, 3.0) for i in range(10)], "csv")
    source, again = (Paced(FileSource(path, VALUES, batch_size=4), 4, clock=itertools.count().__next__) for _ in range(2))
    assert isinstance(source, Source)
    assert len(source.take().points) == 4
    again.seek(source.position)
    same([again.take()], [source.take()])
    assert (source.pending, source.refused, source.ended) == (None, 0, False)
    source.close()
    assert source.ended
    with pytest.raises(ValueError, match="rate must be a finite number > 0"):
        Paced(source, 0)

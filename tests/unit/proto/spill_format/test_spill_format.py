"""The spill store keeps what was pushed, whole or not at all, and says so."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import zlib
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from dovetail_proto.errors import SpillError
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.spill_format import LocalStorage, RemoteStorage, RunRecord, SpillStore
from dovetail_proto.spill_format import layout as layout_module
from kit.spills import make_plan, spill, write_group

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


def table(rows: int, seed: int = 0) -> pa.Table:
    """Rows with few keys."""
    rng = np.random.default_rng(seed)
    text = [None if i % 5 == 0 else f"text {i}" for i in range(rows)]
    columns = [rng.integers(0, 50, rows), rng.random(rows), pa.array(text)]
    return pa.Table.from_arrays([pa.array(c) for c in columns], schema=SCHEMA)


def small_store(root: Path, pushes: int = 2) -> SpillStore:
    """A closed store of two inputs."""
    tables = [table(200, seed=1), table(150, seed=2)]
    epochs = [np.arange(t.num_rows) * pushes // t.num_rows for t in tables]
    return spill(root, make_plan([SCHEMA, SCHEMA]), tables, epochs).store


def all_rows(store: SpillStore, index: int) -> pa.Table:
    """Everything the store holds of one input."""
    parts = []
    for push in store.pushes():
        file = store.open_input(push, index)
        if file is not None:
            count = push.inputs[index].row_groups
            parts.append(file.read(range(count), store.plan.inputs[index].kept.names))
            file.close()
    return pa.concat_tables(parts)


def test_what_was_pushed_is_read_back(tmp_path: Path):
    """All rows of all inputs, as bags, after opening anew."""
    store = small_store(tmp_path / "spill")
    opened = SpillStore.open(str(tmp_path / "spill"))
    assert opened.id == store.id
    assert opened.plan.to_json() == store.plan.to_json()
    for index, rows, seed in ((0, 200, 1), (1, 150, 2)):
        found = all_rows(opened, index).to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, table(rows, seed).to_pylist()))


def test_manifest_tells_groups_generations_rows_and_hash_ranges(tmp_path: Path):
    """Small groups share a row group; its hash range is that of its rows, which are in order."""
    store = small_store(tmp_path / "spill")
    push = store.pushes()[1]
    entry = push.inputs[0]
    file = store.open_input(push, 0)
    assert push.group.tolist() == sorted(set(push.group.tolist()))
    assert set(push.generation.tolist()) == {1}
    assert entry.row_groups == 1
    rows = file.read([0], ["k", "__group", "__generation"])
    file.close()
    hashes = canonical_keys([rows.column("k").combine_chunks()], [pa.int64()]).hashes
    assert (hashes[0], hashes[-1]) == (entry.hash_min[0], entry.hash_max[0])
    assert (hashes[1:] >= hashes[:-1]).all()
    groups = partition_ids(hashes, 8)
    assert rows.column("__group").to_pylist() == groups.tolist()
    assert set(rows.column("__generation").to_pylist()) == {1}
    assert entry.rows.tolist() == [groups.size]
    assert entry.group_rows.tolist() == np.bincount(groups, minlength=8)[push.group].tolist()


def test_row_groups_of_very_many_columns_are_larger(tmp_path: Path) -> None:
    """Else a column chunk would be smaller than what is kept about it; never beyond the most."""
    schema = pa.schema([("k", pa.int64()), *((f"c{i}", pa.int64()) for i in range(1_000))])
    plan = make_plan([schema, schema], partitions=1)
    keys = np.arange(400)
    keys = keys[np.argsort(canonical_keys([pa.array(keys)], plan.key_types).hashes)]
    table = pa.Table.from_arrays([pa.array(keys)] * 1_001, schema=schema)
    store = SpillStore.create(str(tmp_path / "spill"), plan)
    writer = store.begin_push()
    write_group(writer, 0, 0, [table, None])
    entry = writer.commit().inputs[0]
    assert entry is not None
    assert entry.row_groups == -(-table.nbytes // (768 << 10))
    assert entry.memory_bytes.max() <= 1 << 20
    read = pq.read_table(tmp_path / "spill" / entry.name)
    assert read.column("c999").to_pylist() == keys.tolist()


def test_row_groups_are_cut_by_size_wherever_groups_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And each row carries its group and generation."""
    monkeypatch.setattr("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES", 1000)
    store = small_store(tmp_path / "spill")
    push = store.pushes()[0]
    entry = push.inputs[0]
    assert entry.row_groups > 2
    assert entry.memory_bytes.max() < 1200
    assert (entry.hash_min[1:] >= entry.hash_max[:-1]).all()
    parquet = pq.ParquetFile(tmp_path / "spill" / entry.name)
    for r in range(entry.row_groups):
        part = parquet.read_row_group(r)
        hashes = canonical_keys([part.column("k").combine_chunks()], [pa.int64()]).hashes
        assert (hashes[0], hashes[-1]) == (entry.hash_min[r], entry.hash_max[r])
        assert part.column("__group").to_pylist() == partition_ids(hashes, 8).tolist()
        assert set(part.column("__generation").to_pylist()) == {0}
    parquet.close()


def test_any_engine_reads_the_files(tmp_path: Path):
    """DuckDB sees the kept columns, the group and the generation; pages carry checksums."""
    small_store(tmp_path / "spill")
    files = str(tmp_path / "spill" / "pushes" / "*" / "input-00.parquet")
    con = duckdb.connect()
    names = [c[0] for c in con.sql(f"DESCRIBE SELECT * FROM '{files}'").fetchall()]
    assert names == ["k", "v", "s", "__group", "__generation"]
    counted = con.sql(
        f"SELECT __generation, count(*) FROM '{files}' GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert counted == [(0, 100), (1, 100)]
    one = next((tmp_path / "spill" / "pushes").glob("*/input-00.parquet"))
    assert pq.read_table(one, page_checksum_verification=True).num_rows == 100


EVERY_TYPE = {
    "bool": (pa.bool_(), [True, None, False]),
    "uint8": (pa.uint8(), [1, None, 255]),
    "uint64": (pa.uint64(), [1, None, 2**64 - 1]),
    "half": (pa.float16(), [np.float16(1.5), None, np.float16(-2)]),
    "text": (pa.string(), ["", None, "ü"]),
    "large text": (pa.large_string(), ["", None, "ü"]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff"]),
    "fixed binary": (pa.binary(3), [b"abc", None, b"\x00\x00\x00"]),
    "decimal": (pa.decimal128(20, 3), [decimal.Decimal("1.500"), None, decimal.Decimal("-9.999")]),
    "wide decimal": (pa.decimal256(60, 0), [decimal.Decimal(10**50), None, decimal.Decimal(-1)]),
    "date": (pa.date32(), [dt.date(1969, 1, 1), None, dt.date(2026, 2, 3)]),
    "date64": (pa.date64(), [dt.date(1969, 1, 1), None, dt.date(2026, 2, 3)]),
    "time": (pa.time32("s"), [dt.time(1, 2, 3), None, dt.time(0)]),
    "seconds": (
        pa.timestamp("s"),
        [dt.datetime(2026, 1, 2, 3, 4, 5), None, dt.datetime(1900, 1, 1)],
    ),
    "zone": (pa.timestamp("ns", "Europe/Rome"), [1, None, -(2**62)]),
    "duration": (pa.duration("us"), [1, None, -5]),
    "null": (pa.null(), [None, None, None]),
    "list": (pa.list_(pa.int16()), [[1, None], None, []]),
    "list of lists": (pa.list_(pa.list_(pa.string())), [[["a"], None], None, [[]]]),
    "fixed list": (pa.list_(pa.int8(), 2), [[1, 2], None, [3, None]]),
    "struct": (
        pa.struct([("a.b", pa.int8()), ("c", pa.string())]),
        [{"a.b": 1, "c": "x"}, None, {}],
    ),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None, []]),
}


def test_every_type_comes_back_as_it_was(tmp_path: Path):
    """Values and types, also of those that Parquet would change, and of names with dots."""
    fields = [pa.field("k", pa.int64()), *(pa.field(n, t) for n, (t, _) in EVERY_TYPE.items())]
    schema = pa.schema([*fields, pa.field("struct.c", pa.int8())])
    columns = [
        pa.array([7, 7, 7]),
        *(pa.array(v, t) for t, v in EVERY_TYPE.values()),
        pa.array([1, 2, 3], pa.int8()),
    ]
    rows = pa.Table.from_arrays(columns, schema=schema)
    plan = make_plan([schema, SCHEMA])
    store = spill(
        tmp_path / "s", plan, [rows, table(10)], [np.zeros(3, int), np.zeros(10, int)]
    ).store
    file = store.open_input(store.pushes()[0], 0)
    assert file.read([0], schema.names).equals(rows)
    for name in schema.names:
        assert file.read([0], [name]).column(0).equals(rows.column(name))
    file.close()


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_columns_of_every_type_are_merged(tmp_path: Path, name: str):
    """Whatever a push can hold, a merge can."""
    kind, values = EVERY_TYPE[name]
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    store = SpillStore.create(str(tmp_path / "s"), make_plan([schema] * 2, partitions=1))
    rows = pa.table([pa.array([7, 7, 7]), pa.array(values, kind)], schema=schema)
    for generation in range(2):
        writer = store.begin_push()
        write_group(writer, 0, generation, [rows, rows])
        writer.commit()
    store.merge([1, 2])
    file = store.open_input(store.pushes()[0], 0)
    assert (
        file.read([0], ["k", "v"])
        .combine_chunks()
        .equals(pa.concat_tables([rows, rows]).combine_chunks())
    )
    file.close()


def test_a_type_parquet_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path):
    """The error names the input and the remedy."""
    schema = pa.schema([("k", pa.int64()), ("gap", pa.month_day_nano_interval())])
    with pytest.raises(SpillError, match=r"input 'i0'.*cannot be written as Parquet.*cast"):
        SpillStore.create(str(tmp_path / "s"), make_plan([schema, SCHEMA]))
    assert not (tmp_path / "s").exists()


def test_a_reserved_column_name_is_refused(tmp_path: Path):
    """__group is the format's own."""
    schema = pa.schema([("k", pa.int64()), ("__group", pa.int8())])
    with pytest.raises(SpillError, match="'__group' has a name that the spill format uses"):
        SpillStore.create(str(tmp_path / "s"), make_plan([schema, SCHEMA]))


def test_a_large_group_takes_several_row_groups_in_hash_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """So that a reader needs a bounded amount at once."""
    monkeypatch.setattr("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES", 500)
    monkeypatch.setattr("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES_MAX", 1000)
    plan = make_plan([SCHEMA, SCHEMA], partitions=1)
    rows = table(400)
    store = spill(
        tmp_path / "s", plan, [rows, table(1)], [np.zeros(400, int), np.zeros(1, int)]
    ).store
    entry = store.pushes()[0].inputs[0]
    assert entry.row_groups == entry.rows.size > 5
    assert entry.rows.sum() == 400
    assert (entry.hash_min[1:] >= entry.hash_max[:-1]).all()
    again = SpillStore.open(str(tmp_path / "s"))
    assert sorted(map(repr, all_rows(again, 0).to_pylist())) == sorted(map(repr, rows.to_pylist()))
    assert layout_module.ROW_GROUP_BYTES_MAX == 1 << 20


def test_a_store_is_created_in_an_empty_place_only(tmp_path: Path):
    """What is there is never mixed with or overwritten."""
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SpillError, match="is not empty"):
        SpillStore.create(str(tmp_path), make_plan([SCHEMA, SCHEMA]))
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_folder_without_a_store_is_named(tmp_path: Path):
    """Opening it tells what was looked for."""
    with pytest.raises(SpillError, match=r"there is no query\.json; give the folder"):
        SpillStore.open(str(tmp_path))


def test_a_run_that_was_not_closed_opens_but_has_no_record(tmp_path: Path):
    """Rows in memory are lost, so nobody may take the store for complete."""
    tables = [table(10), table(10)]
    epochs = [np.zeros(10, int)] * 2
    spill(tmp_path / "s", make_plan([SCHEMA, SCHEMA]), tables, epochs, close=False)
    opened = SpillStore.open(str(tmp_path / "s"))
    assert not opened.closed
    with pytest.raises(SpillError, match=r"was not closed.*run the query again"):
        opened.run_record()


def test_the_run_record_comes_back(tmp_path: Path):
    """With all of its numbers, up to the largest."""
    store = SpillStore.create(str(tmp_path / "s"), make_plan([SCHEMA, SCHEMA]))
    record = RunRecord((5, 2**63 - 1), 7, 2**64 - 1, {0: 3, 7: 2**63 - 1}, True, 9, "out")
    store.close_run(record)
    assert SpillStore.open(str(tmp_path / "s")).run_record() == record


def test_an_aborted_push_leaves_nothing(tmp_path: Path):
    """No file; the next push works, under a number of its own."""
    store = SpillStore.create(str(tmp_path / "s"), make_plan([SCHEMA, SCHEMA], partitions=1))
    writer = store.begin_push()
    rows = table(1)
    write_group(writer, 0, 0, [rows, None])
    writer.abort()
    writer.abort()
    assert list(tmp_path.glob("s/pushes/*")) == []
    again = store.begin_push()
    write_group(again, 0, 0, [None, rows])
    manifest = again.commit()
    assert manifest.push == 2
    assert manifest.inputs[0] is None
    assert SpillStore.open(str(tmp_path / "s")).pushes()[0].group.tolist() == [0]


def test_one_push_at_a_time(tmp_path: Path):
    """And none after the run is closed; groups ascend in a push."""
    store = SpillStore.create(str(tmp_path / "s"), make_plan([SCHEMA, SCHEMA], partitions=1))
    writer = store.begin_push()
    with pytest.raises(ValueError, match="under way"):
        store.begin_push()
    write_group(writer, 0, 1, [table(1), None])
    for generation in (1, 0):
        with pytest.raises(ValueError, match="must ascend"):
            write_group(writer, 0, generation, [table(1), None])
    with pytest.raises(ValueError, match="under way"):
        store.close_run(RunRecord((0, 0), 0, 0))
    writer.abort()
    store.close_run(RunRecord((0, 0), 0, 0))
    with pytest.raises(ValueError, match="closed"):
        store.begin_push()


class FullDisk(LocalStorage):
    """A disk on which files of input 1 do not fit: the device says so."""

    def scratch(self, name: str) -> str:
        """The real device that is always full, for one input."""
        return "/dev/full" if "input-01" in name else super().scratch(name)

    def discard(self, path: str) -> None:
        """Keep the device."""
        if path != "/dev/full":
            super().discard(path)


@pytest.mark.parametrize("rows", [20, 200_000])
def test_a_full_disk_ends_the_push_and_keeps_the_rest(tmp_path: Path, rows: int):
    """Whether it shows while writing or at commit; the error tells place, cause and remedy."""
    storage = FullDisk(str(tmp_path / "s"))
    store = SpillStore.create_in(storage, make_plan([SCHEMA, SCHEMA], partitions=1))
    big = table(rows)
    hashes = canonical_keys([big.column("k").combine_chunks()], [pa.int64()]).hashes
    big = big.take(np.argsort(hashes, kind="stable"))

    def push() -> None:
        writer = store.begin_push()
        write_group(writer, 0, 0, [big, big])
        writer.commit()

    with pytest.raises(SpillError, match=r"push 1 cannot be written.*No space left.*--spill-dir"):
        push()
    assert store.pushes() == []
    assert [p.name for p in (tmp_path / "s").rglob("*") if p.is_file()] == ["query.json"]
    store.begin_push().abort()


def test_other_file_systems_hold_the_same_store(tmp_path: Path):
    """Written and read through pyarrow.fs, with a rename and without."""
    for kind in ("renaming", "object store"):
        fs = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        storage = RemoteStorage(fs, kind, uri=f"fake://{kind}")
        storage._renames = kind == "renaming"
        if not storage._renames:
            (tmp_path / kind / "pushes" / "000001").mkdir(parents=True)
        plan = make_plan([SCHEMA, SCHEMA], partitions=1)
        if storage._renames:
            store = SpillStore.create_in(storage, plan)
        else:  # object stores have no folders; here one stands for the bucket
            store = SpillStore(storage, plan, "0" * 32)
        assert store.root == f"fake://{kind}"
        rows = table(1)
        writer = store.begin_push()
        if not storage._renames:
            (tmp_path / kind / "pushes" / f"{writer.push:06d}").mkdir(exist_ok=True)
        write_group(writer, 0, 0, [rows, None])
        push = writer.commit()
        assert store.open_input(push, 0).read([0], ["s", "k"]).num_rows == 1
        store.close_run(RunRecord((1, 0), 0, 0))
        assert store.run_record().rows_in == (1, 0)
        if storage._renames:
            assert SpillStore.open_in(storage).pushes()[0].group.tolist() == [0]
            assert store.storage.names("") == ["closed.json", "pushes", "query.json"]


def test_an_unknown_uri_is_refused():
    """With what would be possible."""
    with pytest.raises(SpillError, match="no file system for it"):
        SpillStore.open("nowhere://host/path")


def test_a_uri_of_a_local_folder_is_a_local_store(tmp_path: Path):
    """file:// and the path are the same place."""
    small_store(tmp_path / "s")
    assert SpillStore.open(f"file://{tmp_path}/s").root == str(tmp_path / "s")


def test_hashes_are_text_in_json(tmp_path: Path):
    """Base64 of numbers under zlib: readers whose integers end at 2⁵³ lose nothing."""
    store = small_store(tmp_path / "s")
    raw = json.loads((tmp_path / "s/pushes/000001/manifest.json").read_text())
    for name in ("hash_min", "hash_max"):
        text = raw["body"]["inputs"][0][name]
        found = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u8")
        assert found.tolist() == getattr(store.pushes()[0].inputs[0], name).tolist()

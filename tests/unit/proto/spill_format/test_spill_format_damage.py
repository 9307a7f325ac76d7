"""Damage at any byte, files that are not what they seem, and lies: refused by name."""

from __future__ import annotations

import base64
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format import RunRecord, SpillStore
from kit.small_store import PLAN, SCHEMA, content, push_both_groups, rows_of
from kit.spills import make_plan, write_group

ROWS = 80
"""Of each input in each push."""


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pushes and the end of the run."""
    root = tmp_path_factory.mktemp("spill") / "store"
    store = SpillStore.create(str(root), PLAN)
    push_both_groups(store, 0)
    push_both_groups(store, 1)
    store.close_run(RunRecord((2 * ROWS, 2 * ROWS), 0, 0, {0: 5, 1: 6}))
    return root


def store_files(root: Path) -> list[Path]:
    """Every file of a store."""
    return sorted(p for p in root.rglob("*") if p.is_file())


def read_all(root: Path) -> object:
    """Open, check the run's record and read every row."""
    store = SpillStore.open(str(root))
    return store.plan.to_json(), store.run_record(), content(store)


def test_damage_at_any_place_is_refused_by_name(closed_store: Path, tmp_path: Path):
    """One altered byte, in about 150 places of every file, JSON's white space aside."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    rng = np.random.default_rng(3)
    whole = read_all(root)
    for path in store_files(root):
        data = path.read_bytes()
        places = set(rng.integers(0, len(data), 120).tolist())
        places |= {0, 3, 4, 5, len(data) - 2, len(data) - 5, len(data) - 8, len(data) - 9}
        for place in sorted(places):
            flip = int(rng.integers(1, 256))
            damaged = bytearray(data)
            damaged[place] ^= flip
            if path.suffix == ".json" and _same_json(bytes(damaged), data):
                continue
            path.write_bytes(damaged)
            with pytest.raises(SpillError) as caught:
                read_all(root)
            name = path.relative_to(root).as_posix()
            named = name in str(caught.value)
            # An altered manifest shows in the record of the run as well; both name it.
            assert named, f"{name}, byte {place} ^ {flip}: {caught.value}"
        path.write_bytes(data)
    assert read_all(root) == whole


def _same_json(a: bytes, b: bytes) -> bool:
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return False


def test_a_file_cut_short_anywhere_is_refused_by_name(closed_store: Path, tmp_path: Path):
    """Truncated to nothing, by one byte, and in between."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    for path in store_files(root):
        data = path.read_bytes()
        body = data.rstrip()
        for length in {0, 1, len(data) // 3, len(data) // 2, len(body) - 1}:
            path.write_bytes(data[:length])
            with pytest.raises(SpillError, match=path.name):
                read_all(root)
        path.write_bytes(data)


def test_a_file_that_grew_is_refused(closed_store: Path, tmp_path: Path):
    """Bytes after the footer are not ours."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    path = root / "pushes/000001/input-00.parquet"
    path.write_bytes(path.read_bytes() + b"PAR1")
    with pytest.raises(SpillError, match=r"000001/input-00\.parquet: has \d+ bytes, not \d+"):
        read_all(root)


def test_missing_files_are_named(closed_store: Path, tmp_path: Path):
    """A data file by the manifest, a manifest by the run's record."""
    for n, name in enumerate(["pushes/000002/input-01.parquet", "pushes/000001/manifest.json"]):
        root = tmp_path / str(n)
        shutil.copytree(closed_store, root)
        (root / name).unlink()
        with pytest.raises(SpillError, match=f"{name}: is missing"):
            read_all(root)


def test_files_swapped_within_and_between_stores_are_refused(closed_store: Path, tmp_path: Path):
    """Even if each is whole in itself."""
    other = SpillStore.create(str(tmp_path / "other"), PLAN)
    push_both_groups(other, 0)
    push_both_groups(other, 1)
    other.close_run(RunRecord((160, 160), 0, 0))
    swaps = [
        (closed_store / "pushes/000001/input-01.parquet", "pushes/000001/input-00.parquet"),
        (closed_store / "pushes/000002/input-00.parquet", "pushes/000001/input-00.parquet"),
        (closed_store / "pushes/000002/manifest.json", "pushes/000001/manifest.json"),
        (tmp_path / "other/pushes/000001/input-00.parquet", "pushes/000001/input-00.parquet"),
        (tmp_path / "other/pushes/000001/manifest.json", "pushes/000001/manifest.json"),
        (tmp_path / "other/closed.json", "closed.json"),
        (tmp_path / "other/query.json", "query.json"),
    ]
    for n, (source, target) in enumerate(swaps):
        root = tmp_path / str(n)
        shutil.copytree(closed_store, root)
        shutil.copy(source, root / target)
        with pytest.raises(SpillError):
            read_all(root)


def resealed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a sealed file and give it a checksum that fits: a lie, not an accident."""
    raw = json.loads(path.read_text())
    change(raw["body"])
    text = json.dumps(raw["body"], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    raw["crc32"] = f"{zlib.crc32(text.encode()):08x}"
    path.write_text(json.dumps(raw))


def _entry(body: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = body["inputs"][0]
    return entry


def packed(values: list[int], dtype: str = "<u4") -> str:
    """An array as manifests hold it."""
    return base64.b64encode(zlib.compress(np.array(values, dtype).tobytes())).decode()


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "missing": (lambda b: b.pop("push"), "field 'push' is missing"),
    "unknown": (lambda b: b.update(more=1), "unknown field 'more'"),
    "push": (lambda b: b.update(push=2), "is not the manifest of push 1"),
    "inputs": (lambda b: b["inputs"].append(None), "has 3 inputs, the query 2"),
    "not an object": (lambda b: b["inputs"].__setitem__(0, 7), "an object was expected, not 7"),
    "path": (lambda b: _entry(b).update(name="../../etc/passwd"), "names a file other than"),
    "negative": (lambda b: _entry(b).update(bytes=-1), "field 'bytes' must be an integer in 12"),
    "true": (lambda b: _entry(b).update(bytes=True), "not True"),
    "float": (lambda b: _entry(b).update(bytes=1e3), "not 1000.0"),
    "huge": (lambda b: _entry(b).update(bytes=2**63), "must be an integer in 12"),
    "footer": (lambda b: _entry(b).update(footer_bytes=2**40), "footer is larger than the file"),
    "crc": (lambda b: _entry(b).update(footer_crc32="xyz"), "hexadecimal digits of fixed length"),
    "chunks": (lambda b: _entry(b).update(chunk_crc32=packed([0])), "must be 4 values of uint32"),
    "base64": (lambda b: _entry(b).update(chunk_crc32="é"), "must be base64"),
    "leaves": (lambda b: _entry(b).update(leaf_columns=3), "field 'chunk_crc32' must be 3 values"),
    "row groups": (
        lambda b: _entry(b).update(row_groups=0),
        "'row_groups' must be an integer in 1",
    ),
    "lengths": (lambda b: _entry(b).update(rows=packed([1, 1])), "'rows' must be 1 values"),
    "rows": (lambda b: _entry(b).update(rows=packed([0])), "'rows' must be integers in 1"),
    "other rows": (lambda b: _entry(b).update(rows=packed([7])), "other rows than its file"),
    "too large": (
        lambda b: _entry(b).update(memory_bytes=packed([2**63], "<u8")),
        "'memory_bytes' must be integers in 0",
    ),
    "range": (
        lambda b: _entry(b).update(hash_max=packed([0], "<u8")),
        "a hash range ends before it begins",
    ),
    "outside": (
        lambda b: (
            b.update(generations=1, group=packed([0]), generation=packed([0])),
            [e.update(group_rows=packed([ROWS])) for e in b["inputs"]],
        ),
        "a hash range lies outside its groups",
    ),
    "generations": (lambda b: b.update(generations=3), "'group' must be 3 values of uint32"),
    "replaces": (
        lambda b: b.update(replaced=1, replaces=packed([2])),
        "'replaces' must be integers in 1 … 0",
    ),
    "group": (lambda b: b.update(group=packed([0, 2])), "integers in 0 … 1"),
    "order": (lambda b: b.update(group=packed([1, 0])), "its groups and generations do not ascend"),
    "generation": (lambda b: b.update(generation=packed([0, 2**31])), "'generation' must be"),
    "no rows": (
        lambda b: [e.update(group_rows=packed([ROWS, 0])) for e in b["inputs"]],
        "a hash range lies outside its groups",
    ),
    "again": (
        lambda b: b.update(generation=packed([1, 1])),
        "has generation 1 in push 1 too",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_every_field_of_a_manifest_is_checked(closed_store: Path, tmp_path: Path, lie: str):
    """With a checksum that fits: types, ranges, lengths, paths, and agreement between fields."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    change, message = LIES[lie]
    resealed(root / "pushes/000001/manifest.json", change)
    with pytest.raises(SpillError, match=r"manifest\.json") as caught:
        SpillStore.open(str(root))
    assert message in str(caught.value)


RECORD_LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "rows": (lambda b: b.update(rows_in=[1]), "has rows of 1 inputs, not 2"),
    "checksum": (lambda b: b.update(checksum=5), "field 'checksum' must be text"),
    "interrupted": (lambda b: b.update(interrupted=0), "true or false"),
    "output": (lambda b: b.update(output=5), "field 'output' must be text"),
    "produced": (lambda b: b["produced"].update(group=packed([1, 1])), "do not ascend"),
    "group": (lambda b: b["produced"].update(group=packed([0, 9])), "integers in 0 … 1"),
    "store": (lambda b: b.update(store="0" * 32), "belongs to another spill store"),
    "push": (lambda b: b["pushes"].pop(), "is not the manifest that the run committed"),
}


@pytest.mark.parametrize("lie", RECORD_LIES)
def test_every_field_of_the_run_record_is_checked(closed_store: Path, tmp_path: Path, lie: str):
    """So that counters of another run are never believed."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    change, message = RECORD_LIES[lie]
    resealed(root / "closed.json", change)
    with pytest.raises(SpillError) as caught:
        SpillStore.open(str(root))
    assert message in str(caught.value)


def test_a_plan_of_another_version_is_refused_by_name(closed_store: Path, tmp_path: Path):
    """A store of a later Dovetail."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    resealed(root / "query.json", lambda b: b["plan"].update(version=99))
    with pytest.raises(SpillError, match=r"query\.json: plan has version 99"):
        SpillStore.open(str(root))


def test_another_version_is_refused_with_what_to_do(closed_store: Path, tmp_path: Path):
    """Rather than misread."""
    root = tmp_path / "s"
    shutil.copytree(closed_store, root)
    path = root / "query.json"
    path.write_text(path.read_text().replace('"version": 4', '"version": 3', 1))
    with pytest.raises(SpillError, match=r"format version 3.*use the Dovetail that wrote it"):
        SpillStore.open(str(root))


def test_rows_out_of_hash_order_are_refused(tmp_path: Path):
    """As a changed hash function would leave them: their keys could miss each other."""
    from dovetail_pipeline.cleanup import owed

    store = SpillStore.create(str(tmp_path / "s"), make_plan([SCHEMA, SCHEMA], partitions=1))
    for generation in (0, 1):
        writer = store.begin_push()
        tables = [rows_of(0, 10, i).take([0, *range(8, 0, -1), 9]) for i in (0, 1)]
        write_group(writer, 0, generation, tables)
        writer.commit()
    store.close_run(RunRecord((20, 20), 0, 0))
    with pytest.raises(SpillError, match=r"input-00\.parquet: its rows are not in the recorded"):
        owed(store)


def test_a_store_that_cannot_be_read_is_an_error_not_an_empty_store(tmp_path: Path):
    """A folder where a file should be."""
    SpillStore.create(str(tmp_path / "s"), PLAN)
    os.remove(tmp_path / "s/query.json")
    (tmp_path / "s/query.json").mkdir()
    with pytest.raises(SpillError, match=r"query\.json: cannot be read"):
        SpillStore.open(str(tmp_path / "s"))

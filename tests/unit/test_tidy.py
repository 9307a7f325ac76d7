"""The house rules, run as a test: what a reviewer would otherwise have to remember.

Each test names one rule of ARCHITECTURE.md or CONTRIBUTING.md and lists every place that breaks
it. Rules are read from the syntax tree, never by importing, so a broken module is still judged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGE_FOLDERS = ("proto", "manager", "processor", "pipeline", "client", "bench")
FOLDERS = (*PACKAGE_FOLDERS, "tests", "docs", "examples", "deploy", ".ci")

LAYERS = {
    "dovetail_proto": set[str](),
    "dovetail_manager": {"dovetail_proto"},
    "dovetail_processor": {"dovetail_proto"},
    "dovetail_pipeline": {"dovetail_proto"},
    "dovetail": {"dovetail_proto", "dovetail_manager", "dovetail_processor", "dovetail_pipeline"},
    "dovetail_bench": {
        "dovetail",
        "dovetail_proto",
        "dovetail_manager",
        "dovetail_processor",
        "dovetail_pipeline",
    },
}
"""Which of our packages a package may import, besides itself."""

LAYER_EXCEPTIONS = {
    "dovetail_pipeline": (
        "dovetail_processor.allocators",
        "dovetail_processor.join",
        "dovetail_processor.expressions",
        "dovetail_processor.sinks",
    ),
}
"""Modules (and what is below them) that a package may import although its layer may not."""

ALLOWED_PLACES = {
    "numba": (
        "dovetail_processor/join/kernels/",
        "dovetail_proto/partitioning.py",
        "dovetail_proto/kernel_cache.py",
    ),
    "llvmlite": ("dovetail_processor/join/kernels/", "dovetail_proto/partitioning.py"),
    "google.protobuf": ("dovetail_proto/wire", "dovetail_proto/v1/"),
    "dovetail_proto.v1": (
        "dovetail_proto/wire",
        "dovetail_proto/v1/",
        "dovetail_processor/server",
        "dovetail_manager/server",
        "dovetail_manager/admin/",
        "dovetail/remote",
    ),
    "pydantic": ("settings.py", "dovetail_manager/admin/", "dovetail_proto/plan_file"),
    "pydantic_settings": ("settings.py",),
    "polars": ("dovetail_bench/", "client/dovetail/query_results.py"),
    "pyspark": ("dovetail_pipeline/", "dovetail_bench/", "dovetail/"),
    "typer": ("client/dovetail/", "dovetail_bench/"),
    "rich": ("client/dovetail/", "dovetail_bench/"),
}
"""Where a library may be imported: a part of the path, by library."""

FORBIDDEN_MODULES = {
    "pyarrow.flight": "its gRPC and grpcio's clash in one process",
    "pickle": "no pickle on any wire or in any file",
    "cloudpickle": "no pickle on any wire or in any file",
    "marshal": "no code or objects in files",
    "shelve": "no pickle on any wire or in any file",
}

LINES_MAX = 400
"""About 300 lines is a good module; past this one, the reason belongs in the list below."""

LONG_MODULES = {
    "processor/dovetail_processor/query.py": "the life of a query from opening to its end; its "
    "parts (operators, links, moves, memory) are modules of their own already",
}
"""Modules longer than LINES_MAX, with the reason why splitting them would hurt."""

PRINTING_PLACES = ("client/dovetail/commands/", "client/dovetail/cli.py", "bench/dovetail_bench/")
"""Programs that talk to a terminal. Everything else returns, raises or logs."""


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file of the repository; walks the folders, so that an unpacked archive works too."""
    tops = [ROOT / "Makefile", ROOT / "pyproject.toml", *ROOT.glob("*.md"), *ROOT.glob("*.yml")]
    below = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*"))]
    return tuple(p for p in (*tops, *below) if p.is_file() and "__pycache__" not in p.parts)


def is_generated(path: Path) -> bool:
    """Stubs that protoc wrote follow protoc's style."""
    return "dovetail_proto/v1/" in path.as_posix()


@cache
def sources() -> tuple[Path, ...]:
    """Our packages' modules, without generated ones and tests."""
    return tuple(
        p
        for p in tracked_files()
        if p.suffix == ".py"
        and p.relative_to(ROOT).parts[0] in PACKAGE_FOLDERS
        and not is_generated(p)
    )


@cache
def modules_of_tests() -> tuple[Path, ...]:
    """The test modules and what they share."""
    return tuple(
        p for p in tracked_files() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] == "tests"
    )


@cache
def tree_of(path: Path) -> ast.Module:
    """The module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, node: ast.AST | None = None) -> str:
    """Where a rule is broken, as an editor understands it."""
    line = f":{getattr(node, 'lineno', 1)}" if node is not None else ""
    return f"{path.relative_to(ROOT).as_posix()}{line}"


def package_of(path: Path) -> str:
    """The top package that a source file belongs to."""
    return path.relative_to(ROOT).parts[1]


def imports_of(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every module that a file imports, by absolute name, wherever in the file it does so.

    `from a import b` counts as a and as a.b: b may be a module.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = parts[: len(parts) - node.level + (path.name == "__init__.py")]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield node, f"{base}.{alias.name}"


def within(name: str, module: str) -> bool:
    """Whether `name` is `module` or something below it."""
    return name == module or name.startswith(f"{module}.")


def calls_of(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the dotted name of what is called, where it has one."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def tell(problems: list[str], rule: str) -> None:
    """Fail with every place that breaks `rule`."""
    if problems:
        pytest.fail(f"{rule}:\n  " + "\n  ".join(problems), pytrace=False)


def test_packages_import_only_what_their_layer_allows() -> None:
    """Manager, processor and pipeline know the contract and not each other."""
    problems = []
    for path in sources():
        package = package_of(path)
        for node, name in imports_of(path):
            top = name.split(".")[0]
            if top not in LAYERS or top == package or top in LAYERS[package]:
                continue
            if any(within(name, m) for m in LAYER_EXCEPTIONS.get(package, ())):
                continue
            problems.append(f"{place(path, node)}: {package} imports {name}")
    tell(problems, "layer rule")


def test_every_package_has_a_layer() -> None:
    """A new package must be given a place in the layer rule."""
    assert {package_of(p) for p in sources()} <= set(LAYERS)


def test_libraries_are_imported_only_where_they_belong() -> None:
    """Numba stays in the kernels, protobuf at the wire, pydantic at the edges."""
    problems = []
    for path in sources():
        for node, name in imports_of(path):
            for library, places in ALLOWED_PLACES.items():
                if within(name, library) and not any(p in path.as_posix() for p in places):
                    problems.append(f"{place(path, node)}: {name} belongs in {', '.join(places)}")
    tell(sorted(set(problems)), "library in the wrong place")


def test_no_module_imports_what_is_forbidden() -> None:
    """Arrow Flight and every form of pickle stay out, in tests too."""
    problems = [
        f"{place(path, node)}: {name}: {why}"
        for path in (*sources(), *modules_of_tests())
        for node, name in imports_of(path)
        for module, why in FORBIDDEN_MODULES.items()
        if within(name, module)
    ]
    tell(problems, "forbidden import")


def test_only_terminal_programs_print() -> None:
    """A library that prints cannot be used by another program."""
    problems = [
        place(path, node)
        for path in sources()
        for node, name in calls_of(path)
        if name == "print" and not any(p in path.as_posix() for p in PRINTING_PLACES)
    ]
    tell(problems, "print outside the command line")


def test_tests_never_sleep() -> None:
    """A sleep is a guess about time: wait for the event, or make time an argument."""
    problems = [
        place(path, node)
        for path in modules_of_tests()
        for node, name in calls_of(path)
        if name.split(".")[-1] == "sleep"
    ]
    tell(problems, "sleep in a test")


def test_no_test_is_skipped_for_good() -> None:
    """A skipped or expected failure is a debt that nobody sees; `skipif` may name a platform."""
    problems = [
        place(path, node)
        for path in modules_of_tests()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("pytest.mark.skip", "pytest.mark.xfail")
    ]
    tell(problems, "skipped test")


def test_test_names_or_docstrings_state_a_fact() -> None:
    """`test_join_2` says nothing when it fails; a docstring or four words and more do."""
    problems = []
    for path in modules_of_tests():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("test_"):
                continue
            words = node.name.removeprefix("test_").split("_")
            if ast.get_docstring(node) is None and len(words) < 4:
                problems.append(f"{place(path, node)}: {node.name}")
    tell(problems, "test without a fact")


def test_test_modules_have_distinct_names() -> None:
    """The test folders are no packages, so pytest tells modules apart by name alone."""
    names = [p.name for p in modules_of_tests() if p.name != "conftest.py"]
    tell(sorted({n for n in names if names.count(n) > 1}), "test modules of the same name")


def test_modules_open_with_their_idea() -> None:
    """The first thing in a module is what it is for."""
    tell(
        [place(p) for p in (*sources(), *modules_of_tests()) if not ast.get_docstring(tree_of(p))],
        "module without a docstring",
    )


def test_modules_stay_readable_in_one_sitting() -> None:
    """Size is a smell: a long module needs a reason, and a reason needs a long module."""
    lengths = {
        place(p): len(p.read_text(encoding="utf-8").splitlines())
        for p in (*sources(), *modules_of_tests())
    }
    long = {name for name, lines in lengths.items() if lines > LINES_MAX}
    tell(
        [f"{n}: {lengths[n]} lines, no reason given" for n in sorted(long - set(LONG_MODULES))]
        + [f"{n}: has a reason but is short or gone" for n in sorted(set(LONG_MODULES) - long)],
        f"modules over {LINES_MAX} lines",
    )


TEXT_SUFFIXES = {".py", ".md", ".toml", ".proto", ".yml", ".yaml", ".sh", ".sql", ".cfg", ""}


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file of the repository but this one, which has to spell out what it forbids."""
    for path in tracked_files():
        if path.suffix in TEXT_SUFFIXES and path != Path(__file__).resolve():
            yield path, path.read_text(encoding="utf-8")


def lines_matching(pattern: str) -> list[str]:
    """Every line of a text file that matches, with its place."""
    found = re.compile(pattern)
    return [
        f"{place(path)}:{number}: {line.strip()[:90]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if found.search(line)
    ]


def test_no_path_of_a_grpc_call_is_spelled_out() -> None:
    """They come from the protos, by `dovetail_proto.wire.methods`."""
    problems = [line for line in lines_matching(r"dovetail\.v1\.[A-Z]") if ".py:" in line]
    tell([p for p in problems if not p.startswith(("tests/", "proto/dovetail_proto/v1/"))], "path")


def test_no_work_is_left_as_a_note_in_the_code() -> None:
    """What is to be done belongs in the issue tracker; code that is not done is not merged."""
    tell(lines_matching(r"\b(TODO|FIXME|XXX|HACK)\b"), "notes of unfinished work")


def test_no_package_registry_is_named() -> None:
    """A registry is the user's choice: theirs may be a mirror, or have no route to ours."""
    hosts = r"(pypi|pythonhosted|conda|anaconda|maven|npmjs|docker)\.(org|com|io)|repo1\.maven"
    tell(
        lines_matching(rf"(?i)\b({hosts})\b|--(extra-)?index-url|--trusted-host"),
        "package registry named",
    )


def test_text_files_are_clean() -> None:
    """No trailing blanks, no tabs in Python, one newline at the end."""
    problems = []
    for path, text in text_files():
        if is_generated(path):
            continue
        if text and (not text.endswith("\n") or text.endswith("\n\n")):
            problems.append(f"{place(path)}: does not end in exactly one newline")
        for number, line in enumerate(text.splitlines(), 1):
            if line != line.rstrip() or ("\t" in line and path.suffix == ".py"):
                problems.append(f"{place(path)}:{number}: trailing blank or tab")
    tell(problems, "untidy text")


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link in a Markdown file names a file of this repository."""
    problems = []
    for path, text in text_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target and not (path.parent / target).exists():
                problems.append(f"{place(path)}: {target}")
    tell(problems, "dead link")

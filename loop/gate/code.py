"""Reads an overlay's Python without running it, and names what it may not do.

Imports go by a list of what is allowed, since a list of what is not would always be one short. Code that gets through
still runs in a server that is jailed and attested, and is judged by its answers and by clocks outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

#: Modules that an overlay's Python may import, with everything below them unless refused.
_IMPORTS = (
    *("__future__", "math", "cmath", "typing", "collections", "dataclasses", "functools", "itertools", "enum", "abc"),
    *("operator", "contextlib", "bisect", "heapq", "numbers", "statistics", "struct", "pathlib", "logging"),
    *("torch", "triton", "numpy", "einops", "sglang.srt", "sglang.kernels", "sgl_kernel", "flashinfer"),
    *("specpilot_sglang.patching", "specpilot_sglang.plugin.counters", "specpilot_sglang.kernels"),
)
_REFUSED_IMPORTS = re.compile(
    r"sglang\.srt\.(entrypoints|server_args|plugins|managers\.(tokenizer|detokenizer|io_struct)|observability|metrics)"
    r"|torch\.(multiprocessing|hub|package|utils\.(cpp_extension|data|dlpack)|distributed|jit|serialization|profiler)"
    r"|numpy\.(ctypeslib|f2py|distutils|testing|lib)|triton\.(runtime\.build|tools|profiler)"
)
_NAMES = frozenset(
    {"exec", "eval", "compile", "open", "input", "breakpoint", "globals", "locals", "vars", "setattr", "delattr"}
    | {"memoryview", "exit", "quit", "help"}
)
_ATTRIBUTES = frozenset(
    # other programs and native code
    {"system", "popen", "spawn", "fork", "execv", "subprocess", "ctypes", "ctypeslib", "load_library", "load_inline"}
    | {"cpp_extension", "socket", "importlib", "builtins", "modules", "meta_path"}
    # files and the environment
    | {"environ", "getenv", "putenv", "sys", "os", "load", "save", "from_file", "fromfile", "tofile", "memmap"}
    | {"savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt", "load_state_dict_from_url"}
    | {"write_text", "write_bytes", "unlink", "rename", "symlink_to", "hardlink_to", "touch", "mkdir", "rmdir", "chmod"}
    | {"iterdir", "glob", "rglob", "walk", "resolve", "expanduser", "home", "cwd", "absolute", "FileHandler"}
    # frames and clocks
    | {"f_globals", "f_locals", "f_back", "f_code", "gi_frame", "cr_frame", "tb_frame"}
    | {"perf_counter", "monotonic", "sleep"}
)
_DUNDERS = frozenset(
    {"__init__", "__name__", "__doc__", "__file__", "__call__", "__enter__", "__exit__", "__all__", "__future__"}
)
#: What a patch may replace; the rest of a server is what the clock and the judge look at.
_TARGETS = re.compile(
    r"sglang\.srt\.(speculative|layers|model_executor|models|mem_cache|sampling|distributed"
    r"|managers\.(scheduler|schedule_policy|schedule_batch|tp_worker|overlap_utils|min_free_slots_delayer))[\w.]*:[\w.]+"
    r"|sglang\.kernels\.[\w.]+:[\w.]+"
)
_PATCH_CALLS = frozenset({"Patch", "around", "replace_symbol"})
_LONGEST_TEXT = 2000
_OWN_FILE = re.compile(r'\(?Path\(__file__\)\.parent( / "[\w-][\w.-]*")+\)?\.read_(text|bytes)')


def code_problems(source: str, path: str) -> list[str]:
    """Return what `source` may not contain, one `path:line: reason` each.

    Args:
        source: Python.
        path: for the messages.
    """
    try:
        tree = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    except (cst.ParserSyntaxError, ValueError, RecursionError) as exc:
        return [f"{path}: not valid Python ({str(exc).splitlines()[0]})"]
    reader = _Reader()
    try:
        tree.visit(reader)
    except RecursionError:
        return [f"{path}: nested too deeply"]
    return [f"{path}:{line}: {reason}" for line, reason in sorted(set(reader.found))]


class _Reader(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, str]] = []
        self._imported: set[str] = set()

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            self._module(node, dotted(alias.name))
            bound = alias.asname.name if alias.asname else alias.name
            self._imported.add(dotted(bound).split(".")[0])

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if node.relative:
            self._add(node, "relative imports: each file is loaded by itself")
            return
        module = dotted(node.module) if node.module else ""
        if isinstance(node.names, cst.ImportStar):
            self._add(node, f"imports everything from {module}")
            return
        for alias in node.names:
            self._module(node, f"{module}.{dotted(alias.name)}")
            self._attribute(node, dotted(alias.name))
            if dotted(alias.name) in _PATCH_CALLS and alias.asname:
                self._add(node, "gives Patch another name")
            self._imported.add(dotted(alias.asname.name if alias.asname else alias.name))

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in _NAMES or (_dunder(node.value) and node.value not in _DUNDERS):
            self._add(node, f"uses {node.value}")

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self._attribute(node, node.attr.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if dotted(node.value).split(".")[-1] in _PATCH_CALLS:
                self._add(node, "gives Patch another name")
            # Another name for a module is still the module.
            if isinstance(target.target, cst.Name) and dotted(node.value).split(".")[0] in self._imported:
                self._imported.add(target.target.value)
            self._target(node, target.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._target(node, node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._target(node, node.target)

    def visit_Del(self, node: cst.Del) -> None:
        self._target(node, node.target)

    def visit_Call(self, node: cst.Call) -> None:
        name = dotted(node.func)
        if name.split(".")[-1] in ("getattr", "hasattr", "attrgetter", "methodcaller"):
            self._looks_up(node)
        if name.split(".")[-1] in _PATCH_CALLS and node.args:
            self._patches(node)
        if name.split(".")[-1] in ("read_text", "read_bytes") and not _own_file(node.func):
            self._add(node, "reads a file that is not its own: use Path(__file__).parent / 'name'")

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if len(node.value) > _LONGEST_TEXT:
            self._add(node, f"a text of more than {_LONGEST_TEXT} characters")

    def _module(self, node: cst.CSTNode, name: str) -> None:
        allowed = any(name == known or name.startswith(known + ".") for known in _IMPORTS)
        if not allowed or _REFUSED_IMPORTS.match(name):
            self._add(node, f"imports {name}")

    def _attribute(self, node: cst.CSTNode, name: str) -> None:
        if name in _ATTRIBUTES or (_dunder(name) and name not in _DUNDERS):
            self._add(node, f"uses .{name}")

    def _target(self, node: cst.CSTNode, target: cst.BaseExpression) -> None:
        for place in _places(target):
            root = place
            while isinstance(root, cst.Attribute | cst.Subscript):
                root = root.value
            inside = isinstance(root, cst.Name) and root.value in self._imported
            if isinstance(place, cst.Attribute | cst.Subscript) and (inside or isinstance(root, cst.Call)):
                self._add(node, f"changes {dotted(place) or 'what it imported'}: declare a Patch instead")

    def _looks_up(self, node: cst.Call) -> None:
        texts = [arg.value for arg in node.args[:2]][-1:]
        if not texts or not isinstance(texts[0], cst.SimpleString):
            self._add(node, "looks an attribute up by a computed name")
            return
        for name in str(texts[0].raw_value).split("."):
            self._attribute(node, name)

    def _patches(self, node: cst.Call) -> None:
        named = [arg.value for arg in node.args if arg.keyword is not None and arg.keyword.value == "target"]
        first = named[0] if named else node.args[0].value
        if not isinstance(first, cst.SimpleString):
            self._add(node, "patches a target that is not a literal text")
        elif not _TARGETS.fullmatch(str(first.raw_value)):
            self._add(node, f"patches {first.raw_value}, which is not the speculative path")

    def _add(self, node: cst.CSTNode, reason: str) -> None:
        self.found.append((self.get_metadata(PositionProvider, node).start.line, reason))


def dotted(node: cst.CSTNode) -> str:
    """Return `a.b.c` for names and attributes; what stands before a call or index is left out."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr.value}" if before else node.attr.value
    return ""


def _places(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        elements: Sequence[cst.BaseElement] = target.elements
        for element in elements:
            yield from _places(element.value)
    else:
        yield target


def _own_file(func: cst.CSTNode) -> bool:
    """Whether a `.read_text` is of `Path(__file__).parent / 'plain name'`, written out."""
    text = cst.Module([]).code_for_node(func)
    return (
        re.fullmatch(r"\(?Path\(__file__\)\.parent( / \"[\w-][\w.-]*\")+\)?\.read_(text|bytes)", text.replace("'", '"'))
        is not None
    )


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and len(name) > 4

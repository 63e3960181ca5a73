"""Converts type expressions to Hypothesis strategies, as source.

Each parameter gets a list of candidates, the broadest first; probing selects those that the function accepts.
``hypothesis.strategies.from_type`` is not used: it needs the type as an object, and its ``Any`` and unbounded
numbers produce irrelevant failures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence

MAX_CANDIDATES = 7
_MAX_DEPTH = 6

_INTEGERS = (
    "st.integers(min_value=-100, max_value=100)",
    "st.integers(min_value=0, max_value=20)",
    "st.integers(min_value=1, max_value=100)",
)
_FLOATS = (
    "st.floats(min_value=-1e6, max_value=1e6)",
    "st.floats(min_value=0, max_value=1)",
    "st.floats(min_value=0.1, max_value=100)",
)
_TEXT = (
    "st.text(max_size=40)",
    'st.from_regex(r"[a-z]{1,8}([ _-][A-Za-z0-9]{1,8}){0,4}", fullmatch=True)',
    'st.from_regex(r"[0-9]{1,3}(\\.[0-9]{1,2}){0,2}", fullmatch=True)',
    'st.text(alphabet=" \\n\\tab.-", max_size=40)',
    'st.lists(st.sampled_from(["", " ", "  one", "    two", "\\tthree", "four five."]), max_size=5)'
    '.map("\\n".join)',
    "st.from_regex("
    'r\'\\{"[a-z]{1,3}": [0-9]{1,3}\\}|\\["[a-z]", -?[0-9](\\.[0-9])?\\]|null|true\', fullmatch=True)',
)
PLAIN_DATA = (
    "st.recursive(\n"
    "    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),\n"
    "    lambda inner: (\n"
    "        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)\n"
    "    ),\n"
    "    max_leaves=5,\n"
    ")"
)
_ANYTHING = ("plain_data", _INTEGERS[0], _TEXT[0], f"st.lists({_INTEGERS[0]}, max_size=8)")

_ATOMS: Mapping[str, Sequence[str]] = {
    "int": _INTEGERS,
    "SupportsIndex": _INTEGERS,
    "SupportsInt": _INTEGERS,
    "Integral": _INTEGERS,
    "Rational": _INTEGERS,
    "float": _FLOATS,
    "Real": _FLOATS,
    "Number": _FLOATS,
    "SupportsFloat": _FLOATS,
    "complex": ("st.complex_numbers(max_magnitude=1e6)",),
    "bool": ("st.booleans()",),
    "str": _TEXT,
    "AnyStr": _TEXT,
    "LiteralString": _TEXT,
    "StrPath": _TEXT,
    "StrOrBytesPath": _TEXT,
    "FileDescriptorOrPath": _TEXT,
    "bytes": ("st.binary(max_size=40)",),
    "bytearray": ("st.binary(max_size=40).map(bytearray)",),
    "memoryview": ("st.binary(max_size=40).map(memoryview)",),
    "ReadableBuffer": ("st.binary(max_size=40)",),
    "Buffer": ("st.binary(max_size=40)",),
    "ByteString": ("st.binary(max_size=40)",),
    "WriteableBuffer": ("st.binary(max_size=40).map(bytearray)",),
    "None": ("st.none()",),
    "Any": _ANYTHING,
    "object": _ANYTHING,
    "Incomplete": _ANYTHING,
    "Unused": _ANYTHING,
    "Hashable": (_INTEGERS[0], _TEXT[0]),
    "SupportsRichComparison": _INTEGERS,
    "SupportsRichComparisonT": _INTEGERS,
    "Decimal": ("st.decimals(min_value=-10**6, max_value=10**6, places=3)",),
    "Fraction": ("st.fractions(min_value=-1000, max_value=1000, max_denominator=100)",),
    "date": ("st.dates()",),
    "datetime": ("st.datetimes()",),
    "time": ("st.times()",),
    "timedelta": ("st.timedeltas()",),
    "tzinfo": ("st.just(datetime.timezone.utc)",),
    "UUID": ("st.uuids()",),
    "Path": ("st.from_regex(r'[a-z]{1,8}(/[a-z]{1,8}){0,2}', fullmatch=True).map(pathlib.Path)",),
    "PurePath": ("st.from_regex(r'[a-z]{1,8}(/[a-z]{1,8}){0,2}', fullmatch=True).map(pathlib.PurePath)",),
    "TextIO": (f"st.builds(io.StringIO, {_TEXT[0]})", f"st.builds(io.StringIO, {_TEXT[5]})"),
    "BinaryIO": ("st.builds(io.BytesIO, st.binary(max_size=40))",),
    "range": ("st.builds(range, st.integers(min_value=0, max_value=20))",),
    "slice": ("st.slices(8)",),
    "list": (f"st.lists({_INTEGERS[0]}, max_size=8)",),
    "tuple": (f"st.lists({_INTEGERS[0]}, max_size=5).map(tuple)",),
    "dict": (f"st.dictionaries({_TEXT[0]}, {_INTEGERS[0]}, max_size=5)",),
    "set": (f"st.sets({_INTEGERS[0]}, max_size=8)",),
    "frozenset": (f"st.frozensets({_INTEGERS[0]}, max_size=8)",),
}
_SEQUENCES = frozenset(
    [
        "list",
        "List",
        "Sequence",
        "MutableSequence",
        "Iterable",
        "Collection",
        "Reversible",
        "Container",
        "Sized",
        "deque",
        "SupportsLenAndGetItem",
        "SupportsLenAndGetItemT",
        "_SizedIterable",
        "SupportsIter",
    ]
)
_STREAMS = frozenset(
    ["IO", "SupportsRead", "SupportsReadline", "SupportsNoArgReadline", "SupportsWrite", "TextIOBase"]
)
_MAPPINGS = frozenset(
    ["dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "defaultdict", "SupportsItems"]
)
_TRANSPARENT = frozenset(
    [
        "Annotated",
        "Final",
        "Required",
        "NotRequired",
        "ClassVar",
        "Unpack",
        "SupportsAbs",
        "SupportsRound",
        "SupportsTrunc",
    ]
)
_STRANGE = frozenset(
    ["Type", "type", "Awaitable", "Coroutine", "ModuleType", "CodeType", "FrameType", "Generator"]
)

UNTYPED = (
    _INTEGERS[0],
    _FLOATS[0],
    _TEXT[0],
    f"st.lists({_INTEGERS[0]}, max_size=8)",
    f"st.lists({_FLOATS[0]}, min_size=1, max_size=8)",
    f"st.lists({_TEXT[0]}, max_size=5)",
    "st.binary(max_size=40)",
    f"st.dictionaries({_TEXT[0]}, {_INTEGERS[0]}, max_size=5)",
    "st.booleans()",
)
"""Candidates for a parameter of unknown type, in this order."""


class TypeReader:
    """Reads type expressions of one module.

    ``buildable`` maps the module's classes to the names of strategies for their instances, ``aliases`` its
    type aliases, type variables and new types to their source.
    """

    def __init__(self, buildable: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self._buildable = buildable
        self._aliases = aliases

    def list_candidates(self, annotation: str, own_class: str = "") -> list[str]:
        """Strategies for a type, the broadest first; empty if values of the type cannot be generated."""
        try:
            node = ast.parse(annotation.strip(), mode="eval").body
        except SyntaxError:
            return []
        return list(dict.fromkeys(self._read(node, own_class, 0)))[:MAX_CANDIDATES]

    def _read(self, node: ast.expr, own: str, depth: int) -> Sequence[str]:
        if depth > _MAX_DEPTH:
            return ()
        match node:
            case ast.Constant(value=None):
                return _ATOMS["None"]
            case ast.Constant(value=str(text)):
                return self._read_text(text, own, depth)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._read_name(name, own, depth)
            case ast.BinOp(op=ast.BitOr()):
                return self._unite(_list_members(node), own, depth)
            case ast.Subscript():
                return self._read_generic(node, own, depth)
        return ()

    def _read_text(self, text: str, own: str, depth: int) -> Sequence[str]:
        try:
            return self._read(ast.parse(text.strip(), mode="eval").body, own, depth + 1)
        except SyntaxError:
            return ()

    def _read_name(self, name: str, own: str, depth: int) -> Sequence[str]:
        name = own if name == "Self" and own else name
        if name in self._buildable:
            return (self._buildable[name],)
        if name in self._aliases:
            return self._read_alias(self._aliases[name], own, depth)
        if name in _ATOMS:
            return _ATOMS[name]
        if name in _SEQUENCES:
            return _ATOMS["list"]
        if name in _MAPPINGS:
            return _ATOMS["dict"]
        if name in _STREAMS:
            return (*_ATOMS["TextIO"], *_ATOMS["BinaryIO"])
        return ()

    def _read_alias(self, source: str, own: str, depth: int) -> Sequence[str]:
        """An alias, ``TypeVar("T", int, str)``, ``TypeVar("T", bound=int)`` or ``NewType("N", str)``."""
        try:
            node = ast.parse(source, mode="eval").body
        except SyntaxError:
            return ()
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            bound = [keyword.value for keyword in node.keywords if keyword.arg == "bound"]
            members = bound or node.args[1:]
            if called == "TypeVar":
                # a type variable has the same type throughout a call
                alone = [c for member in members for c in self._read(member, own, depth + 1)[:2]]
                return alone if members else _ANYTHING
            return self._read(members[0], own, depth + 1) if called == "NewType" and members else ()
        return self._read(node, own, depth + 1)

    def _read_generic(self, node: ast.Subscript, own: str, depth: int) -> Sequence[str]:
        head = getattr(node.value, "attr", getattr(node.value, "id", ""))
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if head == "Literal":
            return (f"st.sampled_from([{', '.join(ast.unparse(part) for part in parts)}])",)
        if head == "Optional":
            return self._unite([*parts, ast.Constant(value=None)], own, depth)
        if head == "Union":
            return self._unite(parts, own, depth)
        if head == "Callable":
            return _make_functions(parts)
        if head in _STRANGE:
            return ()
        if head in _TRANSPARENT:
            return self._read(parts[0], own, depth + 1)
        if head in _STREAMS:
            if "bytes" in ast.unparse(parts[0]) and "str" not in ast.unparse(parts[0]):
                return _ATOMS["BinaryIO"]
            return _ATOMS["TextIO"]
        inner = [self._read(part, own, depth + 1) for part in parts]
        if head in ("tuple", "Tuple"):
            return _make_tuples(parts, inner)
        if not inner[0]:
            return ()
        if head in _MAPPINGS:
            if len(inner) < 2 or not inner[1]:
                return ()
            return (f"st.dictionaries({inner[0][0]}, {inner[1][0]}, max_size=5)",)
        if head in ("set", "Set", "AbstractSet", "MutableSet", "frozenset", "FrozenSet"):
            kind = "frozensets" if "rozen" in head else "sets"
            return (f"st.{kind}({inner[0][0]}, max_size=8)",)
        if head in ("Iterator", "Generator"):
            return (f"st.lists({inner[0][0]}, max_size=8).map(iter)",)
        if head in _SEQUENCES:
            return _make_lists(inner[0])
        return self._read(node.value, own, depth + 1)

    def _unite(self, members: Sequence[ast.expr], own: str, depth: int) -> Sequence[str]:
        """Candidates of a union: all members together, then each alone."""
        read = [strategies for member in members if (strategies := self._read(member, own, depth + 1))]
        if not read:
            return ()
        firsts = list(dict.fromkeys(group[0] for group in read))
        rest = [candidate for group in read for candidate in group]
        if len(firsts) == 1:
            return rest
        # a union with "anything" is "anything"
        if "plain_data" in firsts:
            return _ANYTHING
        return (" | ".join(firsts[:4]), *rest)


def _list_members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_list_members(node.left), *_list_members(node.right)]
    return [node]


def _make_functions(parts: Sequence[ast.expr]) -> Sequence[str]:
    """Well-known functions, whose names are readable in a recorded call."""
    arity = len(parts[0].elts) if isinstance(parts[0], ast.List) else 1
    if arity == 2:
        return ("st.just(max)", "st.just(min)")
    if arity != 1:
        return ()
    if len(parts) > 1 and ast.unparse(parts[1]) == "bool":
        return ("st.just(bool)", "st.just(callable)")
    return ("st.just(str)", "st.just(abs)", "st.just(list)")


def _make_tuples(parts: Sequence[ast.expr], inner: Sequence[Sequence[str]]) -> Sequence[str]:
    if len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...:
        return (f"st.lists({inner[0][0]}, max_size=5).map(tuple)",) if inner[0] else ()
    if not all(inner):
        return ()
    return (f"st.tuples({', '.join(group[0] for group in inner)})",)


def _make_lists(element: Sequence[str]) -> Sequence[str]:
    """Lists of the broadest element, then of fixed length, for functions that need lists of equal length."""
    made = [f"st.lists({element[0]}, max_size=8)", f"st.lists({element[0]}, min_size=4, max_size=4)"]
    if " | " in element[0]:
        made.append(f"st.lists({element[1]}, min_size=4, max_size=4)")
    return [*made, *(f"st.lists({narrower}, min_size=1, max_size=8)" for narrower in element[1:])]


def list_text_flavours(
    words: Collection[str], samples: Collection[str], *, binary: bool = False
) -> list[str]:
    """Strategies for texts that are meaningful to a function.

    ``words`` are short texts found in its code and docstring, ``samples`` whole arguments of its examples.
    """
    pieces = list(dict.fromkeys([*samples, *words]))[:24]
    if not pieces:
        return []

    def show(text: str) -> str:
        return repr(text.encode("utf-8", "replace")) if binary else repr(text)

    listed = ", ".join(show(piece) for piece in pieces)
    likes = list(dict.fromkeys(_generalise(sample) for sample in samples if len(sample) <= 60))[:6]
    empty = "b''" if binary else "''"
    flavours = [f"st.lists(st.sampled_from([{listed}]), max_size=5).map({empty}.join)"]
    if not binary:
        flavours.append(f'st.lists(st.sampled_from([{listed}]), max_size=5).map(" ".join)')
        if likes:
            flavours.insert(0, f"st.from_regex({'|'.join(likes)!r}, fullmatch=True)")
    if samples:
        flavours.insert(0, f"st.sampled_from([{', '.join(show(sample) for sample in samples)}])")
    return flavours


def _generalise(sample: str) -> str:
    """A pattern for texts like the sample: other numbers in it, or other letters if it has no number."""
    pattern = re.escape(sample).replace(r"\ ", " ").replace(r"\-", "-")
    if any(letter.isdigit() for letter in sample):
        return re.sub(r"[0-9]+", "[0-9]{1,2}", pattern)
    pattern = re.sub(r"(?<!\\)[a-z]+", "[a-z]{1,6}", pattern)
    return re.sub(r"(?<!\[)(?<!\\)[A-Z]+(?!-)", "[A-Z]{1,2}", pattern)

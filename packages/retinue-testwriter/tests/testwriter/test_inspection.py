from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retinue.core.errors import ExecutionFailedError
from retinue_testwriter.inspection import inspect_file, inspect_names, inspect_text

SHAPES = '''
"""Shapes."""
from pathlib import Path
Path("imported").write_text("yes")


class ShapeError(ValueError):
    pass


class Square:
    """A square.

    >>> Square(3).area()
    9
    """

    def __init__(self, side: int) -> None:
        if side < 0:
            raise ShapeError(side)
        self.side = side

    @property
    def corners(self) -> int:
        return 4

    def area(self) -> int:
        return self.side ** 2

    def __add__(self, other: "Square") -> "Square":
        return Square(self.side + other.side)


def scale(square: Square, factor: int = 2, *names: str, label: str = "x") -> Square:
    """Scale it; raises KeyError for an odd factor."""
    return grow(square, factor)


def grow(square, by):
    if by > 9:
        raise OverflowError
    return Square(square.side * by)


def _hidden():
    pass


enlarge = grow
'''


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    file = tmp_path / "shapes.py"
    file.write_text(SHAPES)
    return file


async def test_reads_a_file_without_importing_it(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subject = await inspect_file(shapes)
    assert (subject.module, subject.root, subject.source) == ("shapes", str(tmp_path), str(shapes))
    assert not (tmp_path / "imported").exists()
    assert "shapes" not in sys.modules


async def test_lists_functions_constructors_methods_properties_and_operators(shapes: Path) -> None:
    subject = await inspect_file(shapes)
    assert {target.name: target.template for target in subject.targets} == {
        "scale": "shapes.scale({arguments})",
        "grow": "shapes.grow({arguments})",
        "Square": "shapes.Square({arguments})",
        "Square.corners": "{0}.corners",
        "Square.area": "{0}.area({arguments})",
        "Square.__add__": "{0} + {1}",
    }
    assert subject.same == (("enlarge", "grow"),)


async def test_knows_types_defaults_and_documented_exceptions(shapes: Path) -> None:
    scale = (await inspect_file(shapes)).get_target("scale")
    assert [(p.name, p.annotation, p.default) for p in scale.parameters] == [
        ("square", "Square", None),
        ("factor", "int", "2"),
        ("label", "str", "'x'"),
    ]
    # Its docstring, the function that it calls, and the module's own exceptions.
    assert set(scale.raises) == {"KeyError", "OverflowError", "ShapeError"}


async def test_takes_the_types_of_the_standard_library_from_typeshed() -> None:
    dedent = (await inspect_text("textwrap")).get_target("dedent")
    assert [(p.name, p.annotation) for p in dedent.parameters] == [("text", "str")]
    assert dedent.returns == "str"


async def test_takes_the_types_of_a_stub_beside_the_source(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("def double(x):\n    return x * 2\n")
    (tmp_path / "plain.pyi").write_text("def double(x: int) -> int: ...\n")
    double = (await inspect_file(tmp_path / "plain.py")).get_target("double")
    assert (double.parameters[0].annotation, double.returns) == ("int", "int")


async def test_follows_what_a_package_takes_from_its_own_files(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import double\n__all__ = ['double']\n")
    (package / "inner.py").write_text("def double(x: int) -> int:\n    return x * 2\n")
    subject = await inspect_file(package / "__init__.py")
    assert subject.module == "pack"
    assert [target.template for target in subject.targets] == ["pack.double({arguments})"]


async def test_a_file_inside_a_package_keeps_its_dotted_name(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("def double(x: int) -> int:\n    return x * 2\n")
    subject = await inspect_file(package / "inner.py")
    assert (subject.module, subject.root) == ("pack.inner", str(tmp_path))


async def test_a_compiled_module_is_known_by_its_stubs() -> None:
    subject = await inspect_text("math")
    assert subject.source == ""
    assert subject.get_target("gcd")


async def test_an_unknown_module_is_named_in_the_error() -> None:
    with pytest.raises(ExecutionFailedError, match="no module no_such_thing"):
        await inspect_names(["no_such_thing"])


async def test_a_missing_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ExecutionFailedError, match=r"there is no file .*absent\.py"):
        await inspect_text(f"tests for {tmp_path}/absent.py")


async def test_a_text_without_a_module_says_how_to_name_one() -> None:
    with pytest.raises(ExecutionFailedError, match=r"Fibonacci numbers' names no Python module") as caught:
        await inspect_text("Create a function that calculates Fibonacci numbers")
    assert "textwrap" in caught.value.remedy
    assert "textwrap" not in caught.value.message


@pytest.mark.parametrize("shown", ["./pk", "{folder}", "~"])
async def test_a_folder_is_called_one(shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pk").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExecutionFailedError, match="is a folder; tests are written for one module") as caught:
        await inspect_text(shown.format(folder=tmp_path / "pk"))
    assert "name a file in it, such as " in caught.value.remedy


async def test_source_that_does_not_parse_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(ExecutionFailedError, match=r"broken\.py: line 2"):
        await inspect_file(tmp_path / "broken.py")


async def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(ExecutionFailedError, match="/no/python"):
        await inspect_text("json", python="/no/python")

"""Prints the types of a module from typeshed or from the ``.pyi`` next to its source, as JSON.

Run by Retinue's own interpreter as ``python -I stubs.py REQUEST``; REQUEST is JSON: ``module``,
``source``, ``standard`` (of the standard library), ``version`` (of the target's interpreter) and
``search_path``. The signatures have the form of ``outline.py``, overloads as lists.
"""

from __future__ import annotations

import ast
import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import typeshed_client
from describing import list_parameters, show  # type: ignore[import-not-found]  # the sibling script


def describe(definition: ast.AST) -> dict[str, Any] | None:
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    return {
        "parameters": list_parameters(definition),
        "returns": show(definition.returns),
        "decorators": [ast.unparse(decorator) for decorator in definition.decorator_list],
    }


def list_signatures(info: typeshed_client.NameInfo) -> list[dict[str, Any]]:
    definitions = info.ast.definitions if isinstance(info.ast, typeshed_client.OverloadedName) else [info.ast]
    return [described for d in definitions if isinstance(d, ast.AST) and (described := describe(d))]


def read_names(request: dict[str, Any], context: typeshed_client.SearchContext) -> typeshed_client.NameDict:
    """The names of the stub that belongs to this module, not of another one with its name.

    A user's ``types.py`` must not get the types of the standard module.
    """
    source = Path(request["source"] or request["module"])
    beside = source.with_suffix(".pyi")
    if request["source"] and beside.exists():
        return typeshed_client.parse_ast(
            ast.parse(beside.read_text(encoding="utf-8"), str(beside)),
            context,
            typeshed_client.ModulePath(tuple(request["module"].split("."))),
            is_init=source.name == "__init__.py",
            file_path=beside,
        )
    found = typeshed_client.get_stub_file(request["module"], search_context=context)
    is_typeshed = found is not None and found.is_relative_to(context.typeshed)
    if is_typeshed and not request["standard"]:
        return {}
    return typeshed_client.get_stub_names(request["module"], search_context=context) or {}


def main() -> None:
    request = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")  # typeshed uses conditions that the client does not know
    context = typeshed_client.get_search_context(
        version=tuple(request["version"][:2]),
        search_path=[Path(entry) for entry in request["search_path"]],
    )
    answer: dict[str, Any] = {"functions": {}, "classes": {}, "aliases": {}, "public": []}
    names = read_names(request, context)
    resolver = typeshed_client.Resolver(context)
    for name, named in names.items():
        info = named
        if isinstance(info.ast, typeshed_client.ImportedName):
            found = resolver.get_fully_qualified_name(f"{request['module']}.{name}")
            if not isinstance(found, typeshed_client.ImportedInfo):
                continue
            info = found.info
        if isinstance(info.ast, ast.Assign | ast.AnnAssign) and info.ast.value is not None:
            answer["aliases"][name] = ast.unparse(info.ast.value)
        elif isinstance(info.ast, ast.ClassDef) and info.child_nodes is not None:
            answer["classes"][name] = {
                "bases": [ast.unparse(base) for base in info.ast.bases],
                "methods": {n: s for n, child in info.child_nodes.items() if (s := list_signatures(child))},
            }
        elif signatures := list_signatures(info):
            answer["functions"][name] = signatures
        if named.is_exported and not name.startswith("_"):
            answer["public"].append(name)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()

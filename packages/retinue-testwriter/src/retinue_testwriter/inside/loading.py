"""Imports the module under test from its folder, even if another module has its name.

A copy of a standard module, or a user's ``types.py``, replaces the loaded module of that name; modules that
imported it earlier keep theirs. Standard library only.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path


def load(module: str, root: str, source: str) -> types.ModuleType:
    """Load the module from ``source`` below ``root``; raises ImportError if another file was loaded."""
    top = module.split(".")[0]
    if root and not is_loaded_from(module, source):
        held = [name for name in sys.modules if name == top or name.startswith(top + ".")]
        if any(same_file(getattr(sys.modules[name], "__file__", None), source) for name in held):
            held = []
        for name in held:
            if not is_below(getattr(sys.modules[name], "__file__", None), root) or top == module:
                del sys.modules[name]
        sys.path.insert(0, root)
    loaded = importlib.import_module(module)
    if source and not same_file(getattr(loaded, "__file__", None), source):
        raise ImportError("{} was loaded from {}, not from {}".format(module, loaded.__file__, source))  # noqa: UP032
    return loaded


def is_loaded_from(module: str, source: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and same_file(getattr(loaded, "__file__", None), source)


def same_file(one: str | None, other: str | None) -> bool:
    return bool(one) and bool(other) and Path(str(one)).resolve() == Path(str(other)).resolve()


def is_below(path: str | None, folder: str) -> bool:
    return bool(path) and Path(str(path)).resolve().is_relative_to(Path(folder).resolve())

# SPDX-License-Identifier: Apache-2.0
"""The original's modules, for the names that the modules laid over them lack."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

__all__ = ["names_of"]

_loaded: dict[str, ModuleType | None] = {}
_why_not: dict[str, str] = {}  # modules that cannot be imported


def _original(module: str) -> ModuleType | None:
    """Return the module of this name that another installation has, if there is one.

    It does not become the module of that name: what it imports of ``mooncake`` is what everybody gets.
    """
    if module in _loaded:
        return _loaded[module]
    _loaded[module] = None  # for the names that it asks for while it is loaded
    package, _, _ = module.partition(".")
    _own, *others = importlib.import_module(package).__path__
    for directory in others:
        spec = PathFinder.find_spec(module, [directory])
        if spec is None or spec.loader is None:
            continue
        try:
            made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)
        except ImportError as error:
            _why_not[module] = f"; the original's, {spec.origin}, cannot be imported: {error}"
            continue
        if getattr(vars(made).get("__getattr__"), "__module__", "") == __name__:
            continue  # this package's, installed a second time
        _loaded[module] = made
        break
    return _loaded[module]


def names_of(module: str) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a module that may lie over the original's.

    Parameters
    ----------
    module : str
        Its name, such as ``mooncake.store``.
    """

    def get(name: str) -> Any:
        if not name.startswith("__"):
            original = _original(module)
            if original is not None and hasattr(original, name):
                return getattr(original, name)
        why_not = _why_not.get(module, "")
        raise AttributeError(f"module {module!r} has no attribute {name!r}{why_not}")

    return get

"""Small errors, each of which some test must notice; `mutations.py` plants them.

An error stands in the file that is named after its (first) test's file.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from planted.mutation import Mutation

__all__ = ["MUTATIONS", "Mutation"]

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "mutation"))
MUTATIONS = tuple(mutation for name in MODULES for mutation in import_module(f"planted.{name}").MUTATIONS)

"""Commands of setuptools that put compiled kernels into a wheel, for users without a compiler.

They do so if LONGGRAFT_PREBUILD is set, as `[tool.cibuildwheel]` does; else the wheel is pure, and its
kernels are compiled at first use.  setuptools loads this file alone, without the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PREBUILD = bool(os.environ.get("LONGGRAFT_PREBUILD"))
ROOT = Path(__file__).parents[2]


class BuildPy(build_py):
    """Compiles for each level of processors, beside the sources."""

    def run(self) -> None:
        super().run()
        if PREBUILD and not self.editable_mode:
            folder = Path(self.build_lib).absolute() / "longgraft"
            subprocess.run([sys.executable, "-m", "longgraft.kernels.build", str(folder)], cwd=ROOT, check=True)


class BdistWheel(bdist_wheel):
    """Tags a wheel with libraries for its platform and every Python: they are called through ctypes."""

    def finalize_options(self) -> None:
        if PREBUILD:
            self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2]) if PREBUILD else super().get_tag()

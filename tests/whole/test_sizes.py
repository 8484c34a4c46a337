"""The core does not grow unnoticed: the changelog states how many lines it has, and why it grew."""

from __future__ import annotations

import re

from toys.sources import LABORATORY, ROOT, modules

SHRINKS = 200  # lines that the core may lose before the changelog must follow


def test_the_changelog_states_the_lines_of_the_core():
    lines = 0
    for module, path in modules():
        if not module.startswith(LABORATORY):
            lines += len(path.read_text().splitlines())
    (stated,) = re.findall(r"^- The core has ([\d,]+) lines", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    most = int(stated.replace(",", ""))
    assert lines <= most, f"The core has {lines:,} lines. Delete {lines - most}, or state {lines:,} and the reason."
    assert lines > most - SHRINKS, f"The core has {lines:,} lines. State them in CHANGELOG.md."

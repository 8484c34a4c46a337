"""Writes the file of `summaries.py` from the methods: `python -m longgraft.methods.write_summaries`."""

from __future__ import annotations

import json
from dataclasses import astuple

from longgraft.methods.find import CORE, zoo
from longgraft.methods.summaries import FILE, Summary

if __name__ == "__main__":
    groups = []
    for methods in (CORE, zoo()):
        rows = [json.dumps(astuple(Summary.of(method))) for method in methods.values()]
        groups.append("[\n" + ",\n".join(rows) + "\n]")
    FILE.write_text("[" + ", ".join(groups) + "]\n", encoding="utf-8")

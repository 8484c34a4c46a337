"""A run as one table to paste: model, machine, depth, speeds, method, interval and version."""

from __future__ import annotations

from longgraft.config.method_roles import PLAIN
from longgraft.eval.reports.cells import cells
from longgraft.eval.reports.overview import pooled_cells
from longgraft.eval.reports.tables import length_name, markdown, number
from longgraft.eval.runs.folder import Run, numbers

HEAD = ("depth", "mode", "method", "prompts", "reading, tokens/s", "decoding, tokens/s", "over plain (95 %)")


def posted(run: Run) -> str:
    """Returns the table of a run, under a line with the model, the machine and the version.

    Speeds are medians over prompts, and the last column is a geometric mean with its interval from five prompts on.
    """
    place = run.environment
    about = (
        f"{place['target']}, {numbers(place)}, on {place['device']} with {place['threads']} threads; "
        f"longgraft {place.get('version', 'of an unknown version')}, git {place['git'][:12]}"
    )
    lines = []
    for cell in pooled_cells(cells(run.rows)):
        if cell.rate is None:
            continue
        speedup = "-" if cell.method == PLAIN else number(cell.speedup)
        speeds = [number(cell.reading_rate, ".0f"), number(cell.rate[1], ".1f")]
        lines.append([length_name(cell.bucket), cell.mode, cell.label, str(cell.prompts), *speeds, speedup])
    return f"{about}\n\n{markdown(HEAD, lines)}"

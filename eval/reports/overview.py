"""The first tables of a report: how much faster, how sure, exact or not, and what disturbed the timing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell
from longgraft.eval.reports.groups import decodings, grouped
from longgraft.eval.reports.tables import length_name, lossless_level, markdown, number, prompt_count, section
from longgraft.eval.runs.quiet import BUSY
from longgraft.eval.runs.rows import Result, Row

SLOWER = 0.97  # of plain decoding's speed: slower than timing varies
DRIFT = 0.15  # change of plain decoding's own speed above which rows are marked
FIRST = 3  # rows of plain decoding with which the later ones are compared

MAIN = (
    "length | prompts | method | speed-up | worst to best | slower by > 3 % | MAT | reading, s | answer, s "
    "| end to end | losslessness"
)

Place = tuple[str, int]  # suite, length
CellsByMethod = Mapping[str, TableCell]


def main_table(cells: Sequence[TableCell], dtype: str) -> str:
    """Returns the table of one mode with a line for each length and method, all suites together.

    Plain decoding comes first, then the lossless methods with the fastest first, then the lossy ones.
    """
    lines = []
    cells_by_length = grouped(pooled_cells(cells), lambda cell: cell.bucket)
    for _, cells_of_length in sorted(cells_by_length.items()):
        best = fastest(cells_of_length)
        for cell in sorted(
            cells_of_length, key=lambda cell: (cell.method != PLAIN, cell.promise == LOSSY, -cell.speed)
        ):
            lines.append(_main_line(cell, dtype, cell is best))
    return markdown(MAIN.split(" | "), lines)


def lead(cells: Sequence[TableCell], without_loops: Sequence[TableCell], default: str) -> list[str]:
    """Returns the answer in a few sentences: how much faster the default is, without loops, with reading, how exact."""
    ours = [cell for cell in pooled_cells(cells) if cell.method == default]
    decoding = [f"{number(c.speedup)} {_where(c)} ({prompt_count(c.prompts)})" for c in ours if c.speedup is not None]
    if not decoding:
        return []
    sentences = [f"Speed-up of `{default}`, the default here: {', '.join(decoding)}."]
    looping = sum(cell.loops for cell in ours)
    if looping:
        rest = [cell for cell in pooled_cells(without_loops) if cell.method == default and cell.speedup is not None]
        without = ", ".join(f"{number(cell.speedup)} {_where(cell)}" for cell in rest) or "nothing was measured"
        sentences.append(
            f"{looping} of {prompt_count(sum(cell.prompts for cell in ours))} have an answer that repeats itself, and "
            f"in a loop every guess is right; without them: {without}."
        )
    end_to_end = [f"{number(cell.end_to_end)} {_where(cell)}" for cell in ours if cell.speedup is not None]
    sentences.append(f"With the reading of the prompt: {', '.join(end_to_end)}.")
    checked = sum(len(cell.checks) for cell in ours)
    same = checked - sum(len(cell.parted) for cell in ours)
    sentences.append(f"{same} of {checked} answers have plain decoding's tokens.\n")
    return [" ".join(sentences)]


def _where(cell: TableCell) -> str:
    if cell.bucket == WHOLE:
        return "on whole prompts"
    return f"at {length_name(cell.bucket)}"


def pooled_cells(cells: Sequence[TableCell]) -> list[TableCell]:
    """Returns the cells of all suites together, or of the only suite, without those that hold nothing."""
    cells_by_suite = grouped(cells, lambda cell: cell.suite)
    pooled = cells_by_suite.get(ALL, cells)
    return [cell for cell in pooled if cell.prompts or cell.failures or cell.checks]


def fastest(cells: Sequence[TableCell]) -> TableCell | None:
    """Returns the cell of the fastest lossless method that has all prompts; None if none was compared."""
    prompts = most_prompts(cells)
    rivals = [cell for cell in cells if cell.competes and cell.prompts >= prompts]
    return max(rivals, key=lambda cell: cell.speed, default=None)


def most_prompts(cells: Iterable[TableCell]) -> int:
    """Returns the number of prompts of the method that has most."""
    return max((cell.prompts for cell in cells), default=0)


def _main_line(cell: TableCell, dtype: str, best: bool) -> list[str]:
    speed = worst_to_best = slower = mat = end_to_end = "-"
    if cell.method != PLAIN:
        mat = number(cell.mat)
        end_to_end = number(cell.end_to_end)
        speed = number(cell.speedup)
        if best:
            speed = f"**{speed}**"
        if cell.speedups:
            count = sum(speedup < SLOWER for speedup in cell.speedups)
            slower = f"{count} of {len(cell.speedups)}"
            worst_to_best = f"{cell.speedups[0]:.2f} to {cell.speedups[-1]:.2f}"
    prompts = str(cell.prompts)
    if cell.loops:
        prompts += f" ({cell.loops} looping)"
    level = lossless_level(cell, dtype)
    if cell.failures:
        level += f"; {cell.failures} failed"
    return [
        length_name(cell.bucket),
        prompts,
        cell.label,
        speed,
        worst_to_best,
        slower,
        mat,
        number(cell.prefill_seconds),
        number(cell.answer_seconds),
        end_to_end,
        level,
    ]


def suite_overview(cells: Sequence[TableCell], default: str) -> list[str]:
    """Returns the speed-ups of one mode by suite and length, and the default beside the fastest method.

    Args:
        default: The name of the method that a session would use.
    """
    methods: dict[str, str] = {}
    places: dict[Place, dict[str, TableCell]] = {}
    compared: dict[Place, CellsByMethod] = {}
    for cell in sorted(cells, key=lambda cell: cell.promise == LOSSY):
        if cell.speedup is not None and cell.method != PLAIN:
            methods[cell.method] = cell.label
        if cell.suite != ALL:
            cells_of_place = places.setdefault((cell.suite, cell.bucket), {})
            cells_of_place[cell.method] = cell
    for place, cells_of_place in places.items():
        if any(cells_of_place[method].speedup is not None for method in methods):
            compared[place] = cells_of_place
    table = []
    if len({suite for suite, _ in compared}) > 1:
        lines = [_suite_line(place, cells_of_place, methods) for place, cells_of_place in compared.items()]
        table = section("", ["suite", "length", "prompts", "ar, tokens/s", *methods.values()], lines)
    return [*table, *_beside_fastest(compared, default)]


def _suite_line(place: Place, cells: CellsByMethod, methods: Iterable[str]) -> list[str]:
    suite, length = place
    plain_speed = "-"
    plain = cells.get(PLAIN)
    if plain is not None and plain.rate is not None:
        plain_speed = f"{plain.rate[1]:.1f}"
    line = [suite_name(suite), length_name(length), str(most_prompts(cells.values())), plain_speed]
    best = fastest(list(cells.values()))
    for method in methods:
        cell = cells[method]
        if cell is best:
            line.append(f"**{number(cell.speedup)}**")
        elif cell.speedup is None and cell.failures:
            line.append("failed")
        else:
            line.append(number(cell.speedup))
    return line


def _beside_fastest(places: Mapping[Place, CellsByMethod], default: str) -> Iterator[str]:
    """Yields a line that says in how many cells the default is the fastest, and by how much it loses."""
    count = 0
    behind = []
    for (suite, length), cells in places.items():
        ours = cells.get(default)
        best = fastest(list(cells.values()))
        rivals = [cell for cell in cells.values() if cell.competes and cell.method != default]
        if ours is None or ours.speedup is None or best is None or not rivals:
            continue
        count += 1
        if best.speed > ours.speed:
            loss = f"{ours.speed / best.speed - 1:.0%}"
            where = f"{suite_name(suite)} {length_name(length)}"
            behind.append(f"{where} ({best.method} {best.speed:.2f}, {loss})")
    if not count:
        return
    ahead = count - len(behind)
    line = f"\n`{default}`, the default here, is the fastest in {ahead} of {count} suites and lengths"
    if behind:
        line += f"; it is behind in {', '.join(behind)}"
    yield f"{line}."


def disturbances(rows: Sequence[Result]) -> Iterator[str]:
    """Yields sentences on what else the machine did meanwhile, and how plain decoding's speed changed.

    Speeds are compared at one length, with the median of the first rows; whole prompts differ in length.
    """
    timed = decodings(rows)
    loads = [row.other_load for row in timed if row.other_load is not None]
    if loads:
        disturbed = sum(load > BUSY for load in loads)
        yield (
            f"While rows were timed, other programs kept {median(loads):.2f} cores busy (median; at most "
            f"{max(loads):.2f}); {disturbed} of {len(loads)} rows had more than {BUSY} beside them."
        )
    ratios = drifts(timed)
    if ratios:
        drifted = sum(abs(ratio - 1) > DRIFT for ratio in ratios)
        yield (
            f"Plain decoding ran at {min(ratios):.2f} to {max(ratios):.2f} of the speed of its first prompts "
            f"of the same length; {drifted} of {len(ratios)} prompts are off by more than {DRIFT:.0%}."
        )


def drifts(rows: Sequence[Row]) -> list[float]:
    """Returns plain decoding's speeds relative to its first rows of the same mode and length."""
    rates: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.key.method == PLAIN and row.key.bucket != WHOLE and row.decode_tokens_per_second > 0:
            rates.setdefault((row.key.mode, row.key.bucket), []).append(row.decode_tokens_per_second)
    ratios = []
    for rates_of_length in rates.values():
        if len(rates_of_length) > FIRST:
            first = median(rates_of_length[:FIRST])
            ratios += [rate / first for rate in rates_of_length]
    return ratios

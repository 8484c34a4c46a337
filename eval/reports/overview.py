"""The first tables of a report: how much faster, how sure, and exact or not; and what disturbed the timing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE
from longgraft.eval.prompts.suites import suite_name
from longgraft.eval.reports.cells import ALL, LOSSY, TableCell
from longgraft.eval.reports.tables import length_name, lossless_level, lossy_last, markdown, method_name, number
from longgraft.eval.runs.quiet import BUSY
from longgraft.eval.runs.rows import Result, Row

SLOWER = 0.97       # of plain decoding's speed: slower than timing varies
DRIFT = 0.15        # change of plain decoding's own speed above which rows are marked
FIRST = 3           # rows of plain decoding with which the later ones are compared

MAIN = ("length", "prompts", "method", "speed-up", "worst to best", "slower by > 3 %", "MAT", "reading, s",
        "answer, s", "end to end", "losslessness")

Place = tuple[str, int]     # suite, length


def main_table(found: Sequence[TableCell], dtype: str) -> str:
    """Returns the table of one mode with a line for each length and method, all suites together.

    Plain decoding comes first, then the lossless methods with the fastest first, then the lossy ones.
    """
    lines = []
    together = pooled_cells(found)
    for bucket in sorted({cell.bucket for cell in together}):
        here = [cell for cell in together if cell.bucket == bucket]
        best = fastest(here)
        lines += [_main_line(cell, dtype, cell is best) for cell in sorted(here, key=_rank)]
    return markdown(MAIN, lines)


def lead(found: Sequence[TableCell], default: str) -> list[str]:
    """Returns the answer in three sentences: how much faster the default is, with reading included, and how exact."""
    mine = [cell for cell in pooled_cells(found) if cell.method == default]
    decoding, whole = [], []
    for cell in mine:
        if cell.speedup is None:
            continue
        where = "on whole prompts" if cell.bucket == WHOLE else f"at {length_name(cell.bucket)}"
        decoding.append(f"{number(cell.speedup)} {where} ({cell.prompts} prompt{'s' * (cell.prompts != 1)})")
        whole.append(f"{number(cell.end_to_end)} {where}")
    if not decoding:
        return []
    checks = [check for cell in mine for check in cell.checks]
    same = sum(check.first_divergence is None for check in checks)
    return [f"Speed-up of `{default}`, the default here: {', '.join(decoding)}. With the reading of the prompt: "
            f"{', '.join(whole)}. {same} of {len(checks)} answers have plain decoding's tokens.\n"]


def pooled_cells(found: Sequence[TableCell]) -> list[TableCell]:
    """Returns the cells of all suites together, or those of the only suite, without those that hold nothing."""
    suite = ALL if any(cell.suite == ALL for cell in found) else found[0].suite
    return [cell for cell in found if cell.suite == suite and (cell.prompts or cell.failures or cell.checks)]


def fastest(found: Sequence[TableCell]) -> TableCell | None:
    """Returns the cell of the fastest lossless method with all prompts; None if none was compared with plain decoding.
    """
    best, highest = None, 0.0
    prompts = max((cell.prompts for cell in found), default=0)
    for cell in found:
        if cell.speedup is None or cell.promise == LOSSY or cell.method == PLAIN or cell.prompts < prompts:
            continue
        if best is None or cell.speedup.value > highest:
            best, highest = cell, cell.speedup.value
    return best


def _rank(cell: TableCell) -> tuple[bool, bool, float]:
    speed = 0.0 if cell.speedup is None else cell.speedup.value
    return cell.method != PLAIN, cell.promise == LOSSY, -speed


def _main_line(cell: TableCell, dtype: str, best: bool) -> list[str]:
    start = [length_name(cell.bucket), _prompts(cell), method_name(cell)]
    seconds = [number(cell.prefill_seconds), number(cell.answer_seconds)]
    level = lossless_level(cell, dtype)
    if cell.failures:
        level += f"; {cell.failures} failed"
    if cell.method == PLAIN:
        return [*start, "-", "-", "-", "-", *seconds, "-", level]
    if cell.speedup is None:
        return [*start, "-", "-", "-", number(cell.mat), *seconds, "-", level]
    speed = number(cell.speedup)
    if best:
        speed = f"**{speed}**"
    slower = sum(speedup < SLOWER for speedup in cell.speedups)
    return [*start, speed, f"{cell.speedups[0]:.2f} to {cell.speedups[-1]:.2f}", f"{slower} of {len(cell.speedups)}",
            number(cell.mat), *seconds, number(cell.end_to_end), level]


def _prompts(cell: TableCell) -> str:
    return f"{cell.prompts} ({cell.loops} looping)" if cell.loops else str(cell.prompts)


def suite_overview(found: Sequence[TableCell], default: str) -> list[str]:
    """Returns the speed-ups of one mode by suite and length, and how the default compares with the fastest method.

    Args:
        found: The cells of one mode.
        default: The name of the method that a session would use.
    """
    places: dict[Place, dict[str, TableCell]] = {}
    for cell in lossy_last(found):
        if cell.suite != ALL:
            places.setdefault((cell.suite, cell.bucket), {})[cell.method] = cell
    methods: dict[str, str] = {}
    for cell in lossy_last(found):
        if cell.speedup is not None and cell.method != PLAIN:
            methods[cell.method] = method_name(cell)
    compared = {}
    for place, here in places.items():
        if any(here[method].speedup is not None for method in methods):
            compared[place] = here
    out = list(_beside_fastest(compared, default))
    if len({suite for suite, _ in compared}) > 1:
        lines = [_suite_line(place, here, methods) for place, here in compared.items()]
        head = ["suite", "length", "prompts", "ar, tokens/s", *methods.values()]
        out.insert(0, f"\n{markdown(head, lines)}")
    return out


def _suite_line(place: Place, here: Mapping[str, TableCell], methods: Mapping[str, str]) -> list[str]:
    suite, bucket = place
    plain, best = here.get(PLAIN), fastest(list(here.values()))
    line = [suite_name(suite), length_name(bucket), str(max(cell.prompts for cell in here.values()))]
    line.append("-" if plain is None or plain.rate is None else f"{plain.rate[1]:.1f}")
    for method in methods:
        cell = here[method]
        if cell.speedup is None:
            line.append("failed" if cell.failures else "-")
        elif cell is best:
            line.append(f"**{number(cell.speedup)}**")
        else:
            line.append(number(cell.speedup))
    return line


def _beside_fastest(places: Mapping[Place, Mapping[str, TableCell]], default: str) -> Iterator[str]:
    """Yields a line that says in how many cells the default method is the fastest, and by how much it loses."""
    count, behind = 0, []
    for (suite, bucket), here in places.items():
        mine, best = here.get(default), fastest(list(here.values()))
        rivals = [cell for cell in here.values() if cell.speedup is not None and cell.promise != LOSSY
                  and cell.method not in (PLAIN, default)]
        if mine is None or mine.speedup is None or best is None or best.speedup is None or not rivals:
            continue
        count += 1
        if best.speedup.value > mine.speedup.value:
            loss = f"{mine.speedup.value / best.speedup.value - 1:.0%}"
            behind.append(f"{suite_name(suite)} {length_name(bucket)} ({best.method} {best.speedup.value:.2f}, {loss})")
    if not count:
        return
    line = f"\n`{default}`, the default here, is the fastest in {count - len(behind)} of {count} suites and lengths"
    if behind:
        line += f"; it is behind in {', '.join(behind)}"
    yield f"{line}."


def disturbances(rows: Sequence[Result]) -> Iterator[str]:
    """Yields sentences on what else the machine did while rows were timed, and how plain decoding's speed changed.

    Speeds are compared at one length, with the median of the first rows; whole prompts differ in length.
    """
    timed = [row for row in rows if isinstance(row, Row)]
    loads = [row.other_load for row in timed if row.other_load is not None]
    if loads:
        marked = sum(load > BUSY for load in loads)
        yield (f"While rows were timed, other programs kept {median(loads):.2f} cores busy (median; at most "
               f"{max(loads):.2f}); {marked} of {len(loads)} rows had more than {BUSY} beside them.")
    ratios = drifts(timed)
    if ratios:
        marked = sum(abs(ratio - 1) > DRIFT for ratio in ratios)
        yield (f"Plain decoding ran at {min(ratios):.2f} to {max(ratios):.2f} of the speed of its first prompts of the "
               f"same length; {marked} of {len(ratios)} prompts are off by more than {DRIFT:.0%}.")


def drifts(rows: Sequence[Row]) -> list[float]:
    """Returns plain decoding's speeds relative to its first rows of the same mode and length, in order of time."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.key.method == PLAIN and row.key.bucket != WHOLE and row.decode_tokens_per_second > 0:
            groups.setdefault((row.key.mode, row.key.bucket), []).append(row.decode_tokens_per_second)
    found = []
    for rates in groups.values():
        if len(rates) > FIRST:
            found += [rate / median(rates[:FIRST]) for rate in rates]
    return found

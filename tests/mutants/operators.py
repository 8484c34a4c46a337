"""Small errors that can be made in Python: the operators of mutation testing.

Conditions are negated, comparisons and numbers replaced by their neighbours, operands swapped or dropped, statements
and keyword arguments dropped, `min` replaced by `max`.  Nothing is changed in docstrings, annotations, decorators,
assertions, formatted strings and messages, nor in the words of a module's tables: such errors need no test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from mutants.mutant import Mutant, Statement

Change = tuple[int, int, int, str]  # line; bytes begin and end; new text

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
OPPOSITES = ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot
CALCULATIONS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
}
PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("find", "rfind"),
    ("index", "rindex"),
    ("startswith", "endswith"),
    ("partition", "rpartition"),
    ("lstrip", "rstrip"),
    ("removeprefix", "removesuffix"),
    ("append", "extend"),
    ("argmin", "argmax"),
    ("floor", "ceil"),
    ("lower", "upper"),
    ("amin", "amax"),
    ("union", "intersection"),
)
NEIGHBOURS = dict(PAIRS) | {second: first for first, second in PAIRS}

MESSAGES = {"option", "Option", "Field", "print", "warn", "add_argument", "echo", "debug", "info", "warning"}
HARMLESS_KEYWORDS = {"strict", "help", "description", "encoding", "stacklevel", "daemon"}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yields the errors that can be made in a file, in its order."""
    walk = Walk(source)
    walk.body(ast.parse(source).body, Statement(range(0), "", ""))
    for statement, (line, begin, end, new) in walk.found:
        mutant = Mutant(path, line, begin, end, new, statement)
        try:
            compile(mutant.applied(source), path, "exec")
        except SyntaxError:
            continue
        yield mutant


def statements(source: str) -> Iterator[Statement]:
    """Yields the statements of a file that can be executed."""
    walk = Walk(source)
    walk.body(ast.parse(source).body, Statement(range(0), "", ""))
    yield from walk.statements


class Walk:
    """Visits all statements of a file and collects the changes that can be made in them."""

    def __init__(self, source: str) -> None:
        self.source = source.encode()
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[tuple[Statement, Change]] = []
        self.statements: list[Statement] = []

    def body(self, nodes: list[ast.stmt], outer: Statement) -> None:
        """Visits the statements inside of another."""
        for node in nodes:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            if not (docstring or typing or isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.Pass)):
                self._statement(node, outer)

    def _statement(self, node: ast.stmt, outer: Statement) -> None:
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        handlers = [*getattr(node, "handlers", []), *getattr(node, "cases", [])]
        blocks = [*inner, *(handler.body[0] for handler in handlers)]
        last = min((block.lineno for block in blocks), default=(node.end_lineno or node.lineno) + 1)
        statement = replace(outer, lines=range(node.lineno, max(last, node.lineno + 1)), top=outer.top or name_of(node))
        if not isinstance(node, ast.Try | ast.ClassDef | FUNCTIONS):
            self.statements.append(statement)
        if not (isinstance(node, ast.Return) and node.lineno == outer.last_line):
            self.found += [(statement, change) for change in self._dropped(node, outer)]
        texts = bool(outer.function) and not isinstance(node, ast.Raise)
        annotations = getattr(node, "annotation", None), getattr(node, "returns", None)
        types = [*getattr(node, "decorator_list", []), *annotations]
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.arguments | ast.withitem | ast.keyword) and child not in types:
                self._expression(child, statement, texts=texts)
        function = node.name if isinstance(node, FUNCTIONS) else outer.function
        last_line = inner[-1].lineno if isinstance(node, FUNCTIONS) else 0
        self.body(inner, replace(statement, function=function, last_line=last_line))
        for handler in handlers:
            self.body(handler.body, statement)

    def _expression(self, node: ast.AST, statement: Statement, texts: bool) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        self.found += [(statement, change) for change in self._changes(node, texts)]
        if isinstance(node, ast.Call):
            texts = texts and called(node) not in MESSAGES
        for child in ast.iter_child_nodes(node):
            harmless = isinstance(child, ast.keyword) and child.arg in HARMLESS_KEYWORDS
            if isinstance(child, ast.arg) or harmless:  # an argument has nothing but its annotation
                continue
            self._expression(child, statement, texts)

    def _changes(self, node: ast.AST, texts: bool) -> Iterator[Change]:
        if isinstance(node, ast.IfExp):
            yield from self._negated(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield from self._negated(test)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            old, new = COMPARISONS[type(node.ops[0])]
            yield self._between(node.left, node.comparators[0], old, new)
        elif isinstance(node, ast.BoolOp):
            yield from self._joined(node)
        elif isinstance(node, ast.BinOp) and type(node.op) in CALCULATIONS and not text_like(node):
            yield self._between(node.left, node.right, *CALCULATIONS[type(node.op)])
            if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv):
                swapped = ast.BinOp(node.right, node.op, node.left)
                yield self._instead(node, ast.unparse(swapped))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield self._instead(node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Slice):
            parts = (node.lower, None, node.step), (None, node.upper, node.step)
            yield from (
                self._instead(node, ast.unparse(ast.Slice(*part)))
                for part, bound in zip(parts, (node.upper, node.lower), strict=True)
                if bound
            )
        elif isinstance(node, ast.Constant):
            yield from (self._instead(node, new) for new in neighbours(node.value))
            if isinstance(node.value, str) and texts and " " not in node.value:
                yield self._longer(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)

    def _call(self, node: ast.Call) -> Iterator[Change]:
        name = called(node)
        if name in NEIGHBOURS:
            end = self._end(node.func)
            yield node.func.end_lineno or node.lineno, end - len(name), end, NEIGHBOURS[name]
        behind = self._end(node.args[-1]) if node.args else None
        for keyword in node.keywords:
            begin, end = self._begin(keyword), self._end(keyword)
            if keyword.arg is not None and keyword.arg not in HARMLESS_KEYWORDS:
                yield keyword.lineno, behind or begin, end, ""
            behind = end

    def _joined(self, node: ast.BoolOp) -> Iterator[Change]:
        """`a and b` becomes `a or b`, `a` and `b`."""
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield self._between(left, right, *words)
        for left_out in node.values:
            others = [value for value in node.values if value is not left_out]
            kept = others[0] if len(others) == 1 else ast.BoolOp(node.op, others)
            yield left_out.lineno, *self._instead(node, f"({ast.unparse(kept)})")[1:]

    def _dropped(self, node: ast.stmt, outer: Statement) -> Iterator[Change]:
        if isinstance(node, ast.If | ast.While):
            yield from self._negated(node.test)
        elif isinstance(node, ast.Break | ast.Continue):
            yield self._instead(node, "continue" if isinstance(node, ast.Break) else "break")
        elif isinstance(node, ast.Assign) and (
            outer.function == "__init__" or isinstance(node.targets[0], ast.Name | ast.Tuple)
        ):
            return  # whoever reads the name raises an error
        elif isinstance(node, ast.Expr | ast.AugAssign | ast.Assign | ast.Raise | ast.Delete | ast.Return):
            yield self._instead(node, "pass")

    def _negated(self, test: ast.expr) -> Iterator[Change]:
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in OPPOSITES:
            return  # its comparison is replaced by the opposite
        if not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):  # `not` is dropped
            yield self._instead(test, f"not ({ast.unparse(test)})")

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Change:
        begin, end = self._end(left), self._begin(right)
        between = self.source[begin:end].decode()
        return left.end_lineno or left.lineno, begin, end, between.replace(old, new, 1)

    def _longer(self, node: ast.Constant) -> Change:
        """A text without blanks is a name rather than a message. It gets one more character."""
        end = self._end(node)
        quote = self.source[end - 1 : end]
        behind = end - 3 if self.source[end - 3 : end] == 3 * quote and node.value else end - 1
        return node.end_lineno or node.lineno, behind, behind, "_"

    def _instead(self, node: ast.AST, new: str) -> Change:
        return node.lineno, self._begin(node), self._end(node), new

    def _begin(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset


def name_of(node: ast.stmt) -> str:
    """Returns the name that a statement at the module's level defines, or nothing."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else ""
    return getattr(node, "name", "")


def called(node: ast.Call) -> str:
    """Returns the last part of a called function's name."""
    return getattr(node.func, "id", None) or getattr(node.func, "attr", "")


def text_like(node: ast.BinOp) -> bool:
    """True if an operand is a string or a list: any other operator raises a TypeError."""
    kinds = ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def neighbours(value: object) -> Iterator[str]:
    """Yields the constants beside a number or a truth value."""
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
    elif isinstance(value, float):
        yield str(value * 2 if value else 1.0)

"""All small mistakes that one could make in a module, one at a time: source in, changed syntax trees out. Pure.

Constants count like code: half of what a threshold can be wrong by stands in its number, and in the statements of a ledger.
Left alone are docstrings, annotations, decorators, imports and the words of sentences. The order is that of the source, so that
a number means the same mutant as long as the source is the same.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""An order is tried one step off and turned round."""
REACHED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "int": "round"}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|PRAGMA)\b")
SQL_MISTAKES = (
    (r"<=", "<"), (r"(?<![<>!])=(?!=)", "!="), (r">=", ">"), (r">(?!=)", ">="), (r"\bIS NULL", "IS NOT NULL"),
    (r"\bIS NOT NULL", "IS NULL"), (r"\bAND\b", "OR"), (r"\bOR\b(?! REPLACE)", "AND"), (r"\bDESC\b", "ASC"),
    (r"\bmax\(", "min("), (r"\bOR REPLACE\b", "OR IGNORE"), (r"\bDO UPDATE SET .*", "DO NOTHING RETURNING *"),
    (r"=1\b", "=0"), (r"=0\b", "=1"), (r"\bUNIQUE\b", ""), (r" WHERE (?!.*\bWHERE\b).*", ""), (r"=(FULL|WAL)\b", "=OFF"),
    (r"DEFAULT 0", "DEFAULT 1"), (r", \w+=excluded\.\w+", ""), (r" - \?", " + ?"),
)  # fmt: skip
_TYPES = frozenset(
    {"tuple", "list", "dict", "set", "frozenset", "type", "Callable", "Mapping", "Sequence", "Iterable", "Iterator"}
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake. ``place`` and ``variant`` find it again; ``before`` and ``after`` are its words for people."""

    place: int
    variant: int
    kind: str
    first_line: int
    last_line: int
    """Of the statement, as far as a test must have run it to notice anything."""
    function: str
    """Qualified name; empty for what runs when the module is imported."""
    before: str
    after: str

    @property
    def words(self) -> str:
        return f"{self.before} → {self.after}"


@dataclass(slots=True)
class _Place:
    """Where a node hangs: ``parent.field`` or ``parent.field[index]``."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    lines: tuple[int, int]
    function: str
    at_import: bool

    def put(self, new: ast.AST | None) -> None:
        """None takes the node away."""
        if self.index is None:
            setattr(self.parent, self.field, new)
        elif new is None:
            del getattr(self.parent, self.field)[self.index]
        else:
            getattr(self.parent, self.field)[self.index] = new


def mutants(source: str) -> Iterator[Mutant]:
    """Each mutant of a module, in the order of its source."""
    for number, place in enumerate(_places(ast.parse(source))):
        seen: set[str] = set()
        for variant, (kind, new) in enumerate(_variants(place)):
            before, after = _told(place.node), "nothing" if new is None else _told(new)
            if kind == "member":
                after = f"without {_lost(place.node, new)}"
            if after not in seen | {before}:
                seen.add(after)
                yield Mutant(number, variant, kind, *place.lines, "" if place.at_import else place.function, before, after)


def mutated(source: str, place: int, variant: int) -> ast.Module:
    """The tree of one of them, ready to be compiled."""
    tree = ast.parse(source)
    found = list(_places(tree))[place]
    found.put(list(_variants(found))[variant][1])
    return ast.fix_missing_locations(tree)


def _told(node: ast.AST) -> str:
    """Of what has a body only its head: the body is told by its own mutants."""
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {_told(node.test)}"
    return " ".join(ast.unparse(node).split())


def _lost(whole: ast.AST, part: ast.AST | None) -> str:
    """The member of ``whole`` that ``part`` has not."""
    entries = [_entries(node) for node in (whole, part)]
    return next((one for one, other in zip_longest(*entries) if one != other), "")


def _entries(node: ast.AST | None) -> list[str]:
    if isinstance(node, ast.Dict):
        return [
            f"{_told(key)}: {_told(value)}" if key else f"**{_told(value)}"
            for key, value in zip(node.keys, node.values, strict=True)
        ]
    return [_told(one) for one in getattr(node, "elts", ())]


_OWN_LINES = (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


def _places(tree: ast.Module) -> Iterator[_Place]:
    yield from _below(tree, "", True, (1, 1))


def _below(parent: ast.AST, function: str, at_import: bool, lines: tuple[int, int]) -> Iterator[_Place]:
    for field, value in ast.iter_fields(parent):
        if _is_left_alone(parent, field):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_words(parent, field, index, node):
                continue
            name, imported, own = function, at_import, lines
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                name = f"{function}.{node.name}".lstrip(".")
            # Defaults of arguments belong to the definition, which runs at import like the body of a class.
            imported = at_import and not (isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and field == "body")
            if isinstance(node, ast.stmt):
                own = (node.lineno, node.lineno if isinstance(node, _OWN_LINES) else node.end_lineno or node.lineno)
            elif isinstance(parent, _OWN_LINES) and isinstance(node, ast.expr):
                own = (node.lineno, node.end_lineno or node.lineno)
            yield _Place(node, parent, field, index, own, name, imported)
            yield from _below(node, name, imported, own)


def _is_left_alone(parent: ast.AST, field: str) -> bool:
    if field in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(parent, ast.Call):
        return True
    if isinstance(parent, ast.Import | ast.ImportFrom | ast.Assert | ast.FormattedValue) and field != "value":
        return True
    if isinstance(parent, ast.Call) and _name(parent.func) in ("TypeVar", "ParamSpec", "NewType"):
        return True
    return isinstance(parent, ast.Subscript) and field == "slice" and _name(parent.value) in _TYPES


def _is_words(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> bool:
    """A docstring, or part of a sentence."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(parent, ast.JoinedStr) and isinstance(node, ast.Constant)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


_Variant = tuple[str, ast.AST | None]


def _variants(place: _Place) -> Iterator[_Variant]:
    for kind, made in _OF.get(type(place.node), {}).items():
        for new in made(copy.deepcopy(place.node), place):
            yield kind, new


def _compare(node: ast.Compare, _: _Place) -> Iterator[ast.AST]:
    for number, operator in enumerate(node.ops):
        for other in COMPARED[type(operator)]:
            new = copy.deepcopy(node)
            new.ops[number] = other()
            yield new


def _bool_op(node: ast.BoolOp, _: _Place) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    for number in range(len(node.values)):
        left = [value for other, value in enumerate(node.values) if other != number]
        yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _unary(node: ast.UnaryOp, _: _Place) -> Iterator[ast.AST]:
    yield node.operand


def _binary(node: ast.BinOp, _: _Place) -> Iterator[ast.AST]:
    if type(node.op) in REACHED:
        yield ast.BinOp(node.left, REACHED[type(node.op)](), node.right)
    yield node.left
    yield node.right


def _add_to(node: ast.AugAssign, _: _Place) -> Iterator[ast.AST]:
    if type(node.op) in REACHED:
        yield ast.AugAssign(node.target, REACHED[type(node.op)](), node.value)
    yield ast.Pass()


def _constant(node: ast.Constant, place: _Place) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield from (ast.Constant(value + 1), ast.Constant(value - 1))
    elif isinstance(value, float):
        yield from (ast.Constant(value * 2), ast.Constant(value / 2)) if value else (ast.Constant(1.0),)
    elif isinstance(value, str) and SQL.match(value):
        yield from map(ast.Constant, _sql(value))
    elif isinstance(value, str) and " " not in value:  # a text with spaces is a sentence
        yield ast.Constant(value + "?")


def _sql(text: str) -> Iterator[str]:
    for pattern, other in SQL_MISTAKES:
        for found in re.finditer(pattern, text):
            yield text[: found.start()] + other + text[found.end() :]


def _return(node: ast.Return, _: _Place) -> Iterator[ast.AST]:
    if node.value is not None:
        yield ast.Return(ast.Constant(None))


def _test(node: ast.If | ast.While | ast.IfExp, _: _Place) -> Iterator[ast.AST]:
    for always in (True, False):
        if not (always and isinstance(node, ast.While)):
            new = copy.deepcopy(node)
            new.test = ast.Constant(always)
            yield new


def _comprehension(node: ast.comprehension, _: _Place) -> Iterator[ast.AST]:
    for number in range(len(node.ifs)):
        new = copy.deepcopy(node)
        del new.ifs[number]
        yield new


def _call(node: ast.Call, _: _Place) -> Iterator[ast.AST]:
    name = _name(node.func)
    if isinstance(node.func, ast.Name) and name in CALLED:
        yield ast.Call(ast.Name(CALLED[name], ast.Load()), node.args, node.keywords)
    if name in ("min", "max") and len(node.args) > 1:
        yield from (arg for arg in node.args if not isinstance(arg, ast.Starred))
    if name == "sorted":
        yield ast.Call(ast.Name("list", ast.Load()), node.args[:1], [])
    for number in range(len(node.keywords)):
        new = copy.deepcopy(node)
        del new.keywords[number]
        yield new


def _slice(node: ast.Slice, _: _Place) -> Iterator[ast.AST]:
    if node.lower is not None:
        yield ast.Slice(None, node.upper, node.step)
    if node.upper is not None:
        yield ast.Slice(node.lower, None, node.step)


def _lambda(node: ast.Lambda, _: _Place) -> Iterator[ast.AST]:
    yield ast.Lambda(node.args, ast.Constant(None))


def _gone(node: ast.stmt, _: _Place) -> Iterator[ast.AST]:
    """A statement that does something and is not missed at once as a name would be."""
    if isinstance(node, ast.Assign) and not any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        return
    if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Yield | ast.Await):
        return
    yield ast.Pass()


def _swapped(node: ast.Break | ast.Continue, _: _Place) -> Iterator[ast.AST]:
    yield ast.Break() if isinstance(node, ast.Continue) else ast.Continue()


def _members(node: ast.Set | ast.List | ast.Tuple | ast.Dict, place: _Place) -> Iterator[ast.AST]:
    """A table or a set of names without one of them. Pairs and records keep their size: without a part they only fall over."""
    if isinstance(node, ast.Tuple) and not (place.at_import or isinstance(place.parent, ast.Compare)):
        return
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return
    for number in range(len(node.keys if isinstance(node, ast.Dict) else node.elts)):
        new = copy.deepcopy(node)
        if isinstance(new, ast.Dict):
            del new.keys[number], new.values[number]
        else:
            del new.elts[number]
            if isinstance(new, ast.Set) and not new.elts:
                continue
        yield new


_Made = Callable[..., Iterator[ast.AST]]
_OF: dict[type[ast.AST], dict[str, _Made]] = {
    ast.Compare: {"comparison": _compare},
    ast.BoolOp: {"and, or": _bool_op},
    ast.UnaryOp: {"sign, not": _unary},
    ast.BinOp: {"arithmetic": _binary},
    ast.AugAssign: {"assignment": _add_to},
    ast.Constant: {"constant": _constant},
    ast.Return: {"return": _return},
    ast.If: {"condition": _test},
    ast.While: {"condition": _test},
    ast.IfExp: {"condition": _test},
    ast.comprehension: {"condition": _comprehension},
    ast.Call: {"call": _call},
    ast.Slice: {"slice": _slice},
    ast.Lambda: {"return": _lambda},
    ast.Expr: {"statement": _gone},
    ast.Assign: {"statement": _gone},
    ast.Delete: {"statement": _gone},
    ast.Raise: {"statement": _gone},
    ast.Break: {"statement": _swapped},
    ast.Continue: {"statement": _swapped},
    ast.Set: {"member": _members},
    ast.List: {"member": _members},
    ast.Tuple: {"member": _members},
    ast.Dict: {"member": _members},
}

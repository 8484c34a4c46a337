"""Pieces of a repository that are chosen for a cursor, their reasons, and the place of a cursor."""

from __future__ import annotations

import pytest

from longgraft.completion.cursor import MOST_BYTES, locate
from longgraft.completion.retrieval.candidates import counterpart, is_test
from longgraft.completion.retrieval.gather import gather
from longgraft.completion.snippets import Cursor, Snippet

BODY = "\n".join(f"        self.part_{n} = {n}" for n in range(60))
FILES = {
    "shop/__init__.py": "from .cart import Cart\nfrom .prices import price_of\n",
    "shop/prices.py": 'def price_of(item, currency):\n    """In minor units."""\n'
    "    return item.minor * currency.rate\n\n\n"
    "def unrelated_thing():\n    return 2\n",
    "shop/cart.py": f"class Cart:\n    total = 0\n\n    def __init__(self):\n{BODY}\n\n"
    f"    def drop_everything(self, why):\n"
    f"        return why\n\n    def _hidden(self):\n        return 1\n",
    "shop/orders.py": "class Order:\n    def ship(self, address):\n        return address\n",
    "shop/stock.py": "def count_boxes(shelf):\n    boxes = shelf.boxes_on(floor=2)\n"
    "    wooden = [box for box in boxes if box.wooden]\n"
    "    return len(wooden)\n",
    "tests/test_desk.py": "from shop.desk import sell\n\n\ndef test_selling():\n    assert sell(3) == 4\n",
    "secret/.env": "TOKEN=1\n",
    "page.js": "const price_of = 1\n",
}
BEFORE = (
    "from shop import Cart, price_of\nfrom shop.orders import Order\n\n\ndef sell(item):\n"
    + "    seen += 1\n" * 25
    + "    cart = Cart()\n"
)


@pytest.fixture
def shop(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def chosen(root, before, tokens=2000, after="", path="shop/desk.py"):
    return gather(root, Cursor(path, before, after), tokens).snippets


def piece(pieces, path, why):
    return next(one for one in pieces if one.path == path and why in one.why)


@pytest.mark.parametrize("since, found", [(9, True), (10, False)])
def test_only_the_last_ten_lines_before_the_cursor_are_compared(shop, since, found):
    line = "    boxes = shelf.boxes_on(floor=2)\n"
    pieces = chosen(shop, line + "    seen += 1\n\n" * since, path="other/x.py")
    assert any("like the lines" in one.why for one in pieces if one.path == "shop/stock.py") == found


def test_lines_like_those_before_the_cursor_are_found_with_the_lines_after_them(shop):
    pieces = chosen(
        shop, "def count_crates(rack):\n    crates = rack.boxes_on(floor=1)\n    wooden = [", path="other/x.py"
    )
    assert pieces[0].path == "shop/stock.py" and "like the lines before" in pieces[0].why
    assert "return len(wooden)" in pieces[0].text


def test_names_that_no_other_file_has_make_no_passage_less_alike(shop):
    new = " ".join(f"new_name_{n}" for n in range(90))
    pieces = chosen(shop, f"{new}\nshelf.boxes_on(wooden, shelf.boxes)\n", path="other/x.py")
    assert any("like the lines" in one.why for one in pieces if one.path == "shop/stock.py")


def test_only_one_copy_of_a_passage_is_shown(shop):
    for n in range(4):
        (shop / f"shop/copy_{n}.py").write_text(FILES["shop/stock.py"] + "\n" * 12 + f"other_{n} = 1\n")
    pieces = chosen(shop, FILES["shop/stock.py"], path="other/x.py")
    assert ["like the lines" in one.why for one in pieces if "boxes_on" in one.text].count(True) == 1


def test_tests_of_a_file_are_shown_for_it_and_it_for_its_tests(shop):
    whys = {one.path: one.why for one in chosen(shop, "def sell(item):\n    ")}
    assert "its tests" in whys["tests/test_desk.py"]
    pieces = chosen(shop, "def test_counting():\n    ", path="tests/test_stock.py")
    assert any(one.path == "shop/stock.py" and "what it tests" in one.why for one in pieces)


def test_pieces_are_whole_lines_that_do_not_overlap_nor_come_from_the_file_itself(shop):
    (shop / "shop/desk.py").write_text(BEFORE)
    pieces = chosen(shop, BEFORE + "    return price_of(", tokens=10_000)
    lines = [(one.path, one.first_line + n) for one in pieces for n in range(one.text.count("\n"))]
    assert len(lines) == len(set(lines)) > 50 and "shop/desk.py" not in {one.path for one in pieces}
    for one in pieces:
        text = FILES[one.path].split("\n")[one.first_line - 1 : one.first_line - 1 + one.text.count("\n")]
        assert one.text == "\n".join(text) + "\n" and one.why and one.worth > 0
    assert [one.worth for one in pieces] == sorted((one.worth for one in pieces), reverse=True)


def test_the_same_cursor_gets_the_same_pieces_and_a_smaller_budget_the_first_of_them(shop):
    first = chosen(shop, BEFORE)
    assert (
        first
        == chosen(shop, BEFORE)
        == gather(str(shop) + "/../" + shop.name, Cursor("shop/desk.py", BEFORE, ""), 2000).snippets
    )
    few = chosen(shop, BEFORE, tokens=30)
    assert 0 < len(few) < len(first) and few == first[: len(few)]


def test_files_that_were_left_out_are_reported_without_their_content(shop):
    left_out = gather(shop, Cursor("shop/desk.py", "x", ""), 100).left_out
    assert left_out.secrets == ("secret/.env",) and left_out.counts == {"in other languages": 1}


@pytest.mark.parametrize("path, before", [("secret/.env", "A"), ("k.py", "AWS = 'AKIA" + "ABCD" * 4 + "'")])
def test_nothing_is_gathered_for_a_secret(shop, path, before):
    with pytest.raises(ValueError, match="never read into a prompt"):
        gather(shop, Cursor(path, before, ""), 100)


def test_a_cursors_file_is_identified_by_its_path_from_the_root(shop):
    pieces = chosen(shop, FILES["shop/cart.py"][:100], path="shop/../shop/./cart.py")
    assert pieces and "shop/cart.py" not in {one.path for one in pieces}
    for path in ("/shop/cart.py", "../cart.py", ".."):
        with pytest.raises(ValueError, match="is not in the repository"):
            chosen(shop, "x", path=path)


def test_other_languages_have_their_neighbours_and_no_files_of_another_language(tmp_path):
    (tmp_path / "box.ts").write_text("export class Box {\n  open(lid: Lid): void {\n  }\n}\nexport const unused = 1;\n")
    (tmp_path / "lid.go").write_text("package lid\n")
    pieces = chosen(tmp_path, "import { Box } from './box';\nnew Box().", path="main.ts")
    assert [piece.path for piece in pieces] == ["box.ts"] and pieces[0].text.startswith("export class Box")
    pieces = chosen(tmp_path, "first\n", path="Makefile")
    assert pieces == ()


@pytest.mark.parametrize(
    "path, name, test",
    [
        ("tests/test_cart.py", "cart", True),
        ("src/cart.py", "cart", False),
        ("a/cart.test.ts", "cart", True),
        ("CartTest.java", "Cart", True),
        ("cart_test.go", "cart", True),
        ("tests/conftest.py", "conftest", True),
        ("latest.py", "latest", False),
    ],
)
def test_a_test_file_has_the_name_of_the_file_it_tests(path, name, test):
    assert (counterpart(path), is_test(path)) == (name, test)


def test_a_cursor_is_a_line_and_a_column_of_a_file(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.py").write_bytes(b"one\r\ntwo\x0c\n\nlast")
    for line, column, before in (
        (1, None, "one"),
        (1, 1, ""),
        (1, 4, "one"),
        (2, 3, "one\r\ntw"),
        (3, None, "one\r\ntwo\x0c\n"),
        (4, None, "one\r\ntwo\x0c\n\nlast"),
    ):
        cursor = locate(tmp_path, "in/a.py", line, column)
        assert (cursor.path, cursor.before) == (
            "in/a.py",
            before,
        ) and cursor.before + cursor.after == "one\r\ntwo\x0c\n\nlast"
    assert locate(tmp_path, "in/b.py", 3, 1, text="a\rb\r\nc") == Cursor("in/b.py", "a\rb\r\n", "c")
    assert locate(tmp_path, tmp_path / "in/new.py", 2, text="x\n") == Cursor("in/new.py", "x\n", "")
    assert locate(tmp_path, "in/a.py", 1, text="unsaved").before == "unsaved"


@pytest.mark.parametrize(
    "file, line, column, said",
    [
        ("a.py", "6", None, "line is '6'; it must be a whole number"),
        ("a.py", 1.5, None, "line is 1.5"),
        ("a.py", None, None, "line is None"),
        ("a.py", True, None, "line is True"),
        ("a.py", 1, "2", "column is '2'"),
        (None, 1, None, "leads to no file"),
        ("vast.py", 1, None, r"has 1,073,741,824 bytes; .* up to 16,777,216"),
        ("a.py", 4, None, "ends with line 2, and line 4"),
        ("a.py", 0, None, "Lines are counted from 1"),
        ("a.py", 1, 5, "has 3 characters, and column 5"),
        ("a.py", 1, 0, "Columns are counted from 1"),
        ("../out.py", 1, None, "outside the repository"),
        ("link.py", 1, None, "outside the repository"),
        ("gone.py", 1, None, "is no file"),
        (".", 1, None, "is no file"),
        (".env", 1, None, "never read into a prompt"),
        ("hidden.py", 1, None, "never read into a prompt"),
        ("held.py", 1, None, "holds a private key, an access token or a pass"),
        ("latin.py", 1, None, "not UTF-8 at byte 1"),
    ],
)
def test_a_wrong_place_is_refused_by_name(tmp_path, file, line, column, said):
    root = tmp_path / "repo"
    root.mkdir()
    for name, text in (("a.py", "one\n"), (".env", "A=1"), ("held.py", "AKIA" + "ABCD" * 4), ("../out.py", "x")):
        (root / name).write_text(text)
    (root / "latin.py").write_bytes(b"x\xe9")
    with open(root / "vast.py", "wb") as sparse:
        sparse.truncate(2**30)
    (root / "link.py").symlink_to(tmp_path / "out.py")
    (root / "hidden.py").symlink_to(root / ".env")
    with pytest.raises(ValueError, match=said):
        locate(root, file, line, column)


@pytest.mark.parametrize("text, last", [("a\n", 5), ("a\nb\n", 6), ("a\nb", 6), ("a\x0c\u2028\nb\n", 6), ("\n\n", 6)])
def test_the_last_line_of_a_snippet_is_counted_in_line_feeds(text, last):
    assert Snippet("a.py", text, 5).last_line == last


def test_an_unsaved_text_must_be_text_of_a_readable_size(tmp_path):
    for text, said in ((5, "is a int"), ("x" * (MOST_BYTES + 1), "up to 16,777,216")):
        with pytest.raises(ValueError, match=said):
            locate(tmp_path, "a.py", 1, text=text)

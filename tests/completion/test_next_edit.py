"""Next edits: the model rewrites the lines around the cursor, and the completion is what it changed."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import replace

import pytest
from toys.commands import assert_before_loading, run
from toys.completing import completing, toy
from toys.gguf_files import write_gguf
from toys.served import asking

import longgraft
from longgraft.completion.changes import before_last_change, changes_of
from longgraft.completion.prompt.next_edit import current_window
from longgraft.completion.snippets import Cursor
from longgraft.completion.window import Edit, RewriteEnding, Window
from longgraft.models.catalogue import catalogue

BEFORE = """from shapes import area


def greet():
    print("Hello!")


greet()
print(area(2))
print(area(3))
"""
NOW = BEFORE.replace("def greet():", "def greet(name):")
REWRITTEN = NOW.replace('"Hello!"', 'f"Hello, {name}!"')
DIFF = "".join(difflib.unified_diff(BEFORE.splitlines(True), NOW.splitlines(True), "a/main.py", "b/main.py", n=1))
BLOCK = "".join(
    f"<|file_sep|>{path}/main.py\n{text}" for path, text in (("original", BEFORE), ("current", NOW), ("updated", ""))
)
CHANGE = """<|file_sep|>main.py.diff
original:

def greet():
    print("Hello!")
updated:

def greet(name):
    print("Hello!")
"""
EDIT = Edit("main.py", 5, 5, '    print(f"Hello, {name}!")\n')


@pytest.fixture
def repo(tmp_path):
    (tmp_path / "shapes.py").write_text("def area(side):\n    return side * side\n")
    (tmp_path / "main.py").write_text(NOW)
    return tmp_path


def suggested(repo, says: str, session=None, line: int = 4, **options):
    """Asks for a next edit from a model that replays the text `says`."""
    session = session or completing(fim=True)
    replay = session.tokenizer(says, add_special_tokens=False)["input_ids"]
    options = {"changes": DIFF, "layout": "next-edit"} | options
    return longgraft.complete(repo, "main.py", line, session=session, replay=replay, **options)


def test_the_prompt_has_sweeps_layout(repo):
    found = suggested(repo, REWRITTEN)
    prompt = toy(True)[1].decode(found.prompt.ids)
    assert prompt == f"<|file_sep|>shapes.py\n{(repo / 'shapes.py').read_text()}{CHANGE}{BLOCK}"
    assert found.prompt.form == "next-edit" and found.prompt.tokens[0] + found.prompt.before == len(found.prompt.ids)


def test_the_edit_is_the_lines_that_changed_and_decoding_ends_with_them(repo):
    found = suggested(repo, REWRITTEN + "<|file_sep|>")
    assert (found.edit, found.text, found.ended) == (EDIT, EDIT.text, "block")
    whole = suggested(repo, REWRITTEN + "<|file_sep|>", until="stop", stop="<|file_sep|>")
    assert (whole.edit, whole.ended) == (EDIT, "stop")
    assert len(found.generation.token_ids) < len(whole.generation.token_ids)


def test_the_edit_of_a_file_from_windows_has_its_line_ends(repo):
    (repo / "main.py").write_text(NOW, newline="\r\n")
    found = suggested(repo, REWRITTEN)
    assert (found.edit.text, found.text) == (EDIT.text.replace("\n", "\r\n"),) * 2


def test_a_rewrite_that_a_limit_cuts_off_is_no_edit(repo):
    session = completing(fim=True)
    limit = len(session.tokenizer(NOW)["input_ids"]) + 3
    found = suggested(repo, "x\n" * limit, session, max_new_tokens=3)
    assert (found.edit, found.text, found.ended) == (None, "", "length")
    assert len(found.generation.token_ids) == limit  # those of the rewritten lines come on top of --max-new-tokens


@pytest.mark.parametrize(("stop", "edit"), [((), EDIT), (("</s>",), EDIT), (("\n\n",), None), (('name}!"',), None)])
def test_a_rewrite_that_a_stop_string_cuts_off_is_no_edit(repo, stop, edit):
    found = suggested(repo, REWRITTEN + "<|file_sep|>", until="stop", stop=("<|file_sep|>", *stop))
    assert (found.edit, found.ended) == (edit, "stop")


def test_the_new_lines_of_an_edit_are_told_once(repo):
    told = []
    assert suggested(repo, REWRITTEN, tell=told.append).text == EDIT.text
    suggested(repo, NOW + "<|file_sep|>", stop="<|file_sep|>", tell=told.append)
    assert told == [EDIT.text]


def test_passages_leave_room_for_the_whole_rewritten_window(repo):
    for n in range(20):
        (repo / f"more{n}.py").write_text("def area(side):\n" + f"    return side * {n}\n" * 20)
    session = completing(fim=True)
    positions = min(session.engine.limits.values())
    found = suggested(repo, REWRITTEN, session, max_new_tokens=positions - 1300)
    answer = len(found.prompt.prediction[0]) + positions - 1300
    assert found.used and positions - 500 < len(found.prompt.ids) + answer <= positions


LINES = tuple("abcdefgh")
FOLLOWING = ("i", "j", "k")


def window_of(lines, following=FOLLOWING) -> Window:
    """Returns a window at a file's beginning."""
    return Window("a.py", 1, tuple(lines), ("\n",) * len(lines), following)


@pytest.mark.parametrize(
    ("answer", "edit"),
    [
        ("abcXefgh", (4, 4, "X")),
        ("abcXYdefgh", (4, 3, "XY")),
        ("abcefgh", (4, 4, "")),
        ("abcdefghX", (9, 8, "X")),
        ("Xbcdefgh", (1, 1, "X")),
        ("abcdefgh", None),
        ("abcdefghij", None),
        ("abcXefghijk", (4, 4, "X")),
        ("", None),
        ("abcdefg", (8, 8, "")),
        ("abcdXfYh", (5, 7, "XfY")),
        ("abcdefgXij", (8, 8, "X")),
        ("abcdefijk", (7, 8, "")),
        ("abcdefgXi", (8, 8, "Xi")),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_an_edit_leaves_out_what_repeats_the_window_or_the_lines_after_it(answer, edit, end):
    found = window_of(LINES).edit("\n".join(answer) + end)
    wanted = edit and Edit("a.py", edit[0], edit[1], "".join(f"{line}\n" for line in edit[2]))
    assert found == wanted


@pytest.mark.parametrize(
    ("text", "answer", "after"),
    [
        ("d\nx\n\n", "d\nx\n\np\n", "d\nx\n\np\n"),
        ("d\nx\n\n", "d\nx\n\n\np", "d\nx\n\n\np\n"),
        ("d\n\n\n\n", "d\n\np", "d\n\np\n\n\n"),
        ("\n", "\nx", "\nx\n"),
        ("", "x", "x\n"),
        ("d\n", "d\n\np\n", "d\n\np\n"),
        ("d\nx\n\n", "d\ny\n", "d\ny\n\n"),
    ],
)
def test_lines_after_blank_ones_at_the_files_end_do_not_repeat_these(text, answer, after):
    assert Window.around(Cursor("a.py", "", text)).edit(answer).applied(text) == after


@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        ("abcXef", None),
        ("abcXefgh", None),
        ("abcXdef", "abcXdefgh"),
        ("abXdefgh", "abXdefgh"),
        ("abXdefg", None),
        ("abcXe", None),
        ("abc", None),
        ("abdef", None),
        ("abdefgh", "abdefgh"),
        ("abcXdefg", "abcXdefgh"),
        ("abcdefghi", "abcdefgh"),
        ("abcdefghX", None),
        ("abcXYZ", None),
        ("abXdefghY", "abXdefgh"),
        ("abXdefghXY", "abXdefgh"),
    ],
)
def test_an_edit_is_complete_when_the_answer_comes_back_to_the_window(begun, whole):
    ending = RewriteEnding("block", window_of(LINES))
    text = "".join(f"{line}\n" for line in begun)
    rejoined = ending.window.rejoined(text + "par")
    assert rejoined == (whole and "\n".join(whole)) and (ending.of(text + "par") is None) == (whole is None)
    assert ending.of(text + "par") in (None, len(text))


@pytest.mark.parametrize(
    ("lines", "begun"),
    [
        ("a x y x y d", "a Z x y"),
        ("x y b x y c", "x y Z x y"),
        ("x y b c", "x y Z x y"),
        ("a  b  c d", "Z  b "),
        ("a  c d", "Z  c"),
        ("f ( x ) } tail", "g ( q ) }"),
    ],
)
def test_lines_that_an_insertion_may_have_too_do_not_complete_an_edit(lines, begun):
    window = window_of(lines.split(" "), ("", "next"))
    assert window.rejoined("\n".join(begun.split(" ")) + "\n") is None


@pytest.mark.parametrize(
    ("begun", "whole"),
    [
        ("class A:|    def n(self):|        a()|        b()", None),  # inserted before m, or m renamed
        ("class A:|    def n(self):|        a()|        b()|        c()|    x = 1", None),
        ("class A:|    def n(self):|        a()|        b()|        c()|    x = 1|    y = 2", "n"),
        ("class A:|    def m(self):|        z()|        b()|        c()|    x = 1", "z"),
        ("class A:|    def m(self):|        z()|        b()|        c()", None),
    ],
)
def test_lines_like_those_of_a_similar_block_complete_an_edit_where_they_leave_the_block(begun, whole):
    lines = [
        "class A:",
        "    def m(self):",
        "        a()",
        "        b()",
        "        c()",
        "    x = 1",
        "    y = 2",
        "    z = 3",
    ]
    changed = {
        "n": [lines[0], "    def n(self):", *lines[2:]],
        "z": [*lines[:2], "        z()", *lines[3:]],
    }
    found = window_of(lines).rejoined(begun.replace("|", "\n") + "\n")
    assert found == (whole and "\n".join(changed[whole]))


def test_a_method_inserted_before_a_similar_one_leaves_that_ones_header():
    old = [
        "class A:",
        "    def old(self):",
        '        """Does it."""',
        "        start()",
        "        return 1",
        "",
        "x = 1",
    ]
    new = [old[0], "    def new(self):", *old[2:4], "        return 2", "", *old[1:]]
    window = window_of(old, ())
    ending = RewriteEnding("block", window)
    text = ""
    for line in new:
        text += f"{line}\n"
        if ending.of(text) is not None:
            break
    edit = ending.edit(text, "block")
    assert edit.applied("\n".join(old)) == "\n".join(new)


def test_a_blank_line_after_the_window_may_begin_an_insertion():
    window = window_of(LINES, ("", "i"))
    whole = "\n".join(LINES) + "\n\n"
    assert (window.rejoined(whole), window.rejoined(whole + "i\n")) == (None, "\n".join(LINES))


def test_the_window_is_the_cursors_line_with_ten_lines_on_each_side():
    lines = [str(n) for n in range(1, 101)]
    window = Window.around(Cursor("a.py", "\n".join(lines[:50]), "\n" + "\n".join(lines[50:])))
    assert (window.first_line, window.lines) == (40, tuple(lines[39:60])) and window.following[:2] == ("61", "62")
    assert Window.around(Cursor("a.py", "", "1\n2")).lines == ("1", "2")


def test_a_window_within_a_file_has_the_ends_of_its_own_lines():
    before = "".join(f"{n}\n" for n in range(30))
    window = Window.around(Cursor("a.py", before, "30\r\n31\r32"))
    assert window.ends == (*["\n"] * 10, "\r\n", "\r", "")
    window = Window.around(Cursor("a.py", before, "".join(f"{n}\r\n" for n in range(30, 60))))
    assert window.ends == (*["\n"] * 10, *["\r\n"] * 11)


def test_the_current_window_is_a_prediction(repo):
    lines = "".join(f"value_{n} = {n * n}\n" for n in range(20))
    (repo / "main.py").write_text(lines)
    found = suggested(repo, lines, changes="", line=10, until="stop")
    assert [toy(True)[1].decode(ids) for ids in found.prompt.prediction] == [lines.rstrip("\n")]
    assert found.generation.stats.accepted_by_origin["retrieved"] > 0.8 * len(lines)


def test_a_keystroke_reads_at_most_its_change_and_the_windows_anew(repo):
    (repo / "shapes.py").write_text("def area(side):\n" + "".join(f"    side += {n}\n" for n in range(200)))
    session, read, most = completing(fim=True, prefixes=0.1), [], 0
    for typed in ("", "p", "pr", "pri"):
        text = NOW.replace("\n\n\ngreet()\n", f"\n\n\n{typed}\ngreet()\n")
        typing = difflib.unified_diff(NOW.splitlines(True), text.splitlines(True), "a/main.py", "b/main.py", n=1)
        changes = DIFF + "".join(typing)
        found = suggested(repo, text + "<|file_sep|>", session, text=text, changes=changes)
        read.append(len(found.prompt.ids) - found.reused)
        most = len(toy(True)[1].decode(found.prompt.ids).rpartition("<|file_sep|>main.py.diff")[2])
    assert read[0] > 900 and max(read[1:]) <= most


def test_changes_of_a_git_repository_are_found_from_a_root_within_it(repo):
    (repo / ".git").mkdir()
    (repo / "inner").mkdir()
    (repo / "main.py").rename(repo / "inner/main.py")
    diff = DIFF.replace("main.py", "inner/main.py")
    long = DIFF.replace("main.py", "x" * 300)  # no file can have this name
    for changes in (diff, DIFF, long + diff):
        found = suggested(repo / "inner", REWRITTEN, changes=changes)
        assert toy(True)[1].decode(found.prompt.ids).endswith(CHANGE + BLOCK)


def shown_for(repo, changes: str, tokens: int = 8192) -> str:
    """Returns the prompt for these changes."""
    return toy(True)[1].decode(suggested(repo, "x", changes=changes, tokens=tokens).prompt.ids)


def test_the_last_changes_are_shown_in_their_order_as_far_as_they_fit(repo):
    hunks = "+++ b/b.py\n" + "".join(f"@@ -{n},0 +{n} @@\n+change{n}\n" for n in range(1, 6))
    shown = shown_for(repo, hunks)
    assert [shown.find(f"change{n}") > 0 for n in range(1, 6)] == [False, False, True, True, True]
    assert shown.index("change3") < shown.index("change5")
    windows, block = BLOCK.replace(BEFORE, NOW), "|b.py.diff\noriginal:\n\nupdated:\nchange5\n"
    small = shown_for(repo, hunks, len(completing(True).encode(windows)) + 2 * len(block))
    assert [f"change{n}" in small for n in (3, 4, 5)] == [False, True, True]
    long = "@@ -0,0 +1,100 @@\n" + "".join(f"+line{n}\n" for n in range(100))
    cut = shown_for(repo, f"+++ b/b.py\n{long}")
    assert "line19\n...\nline81\n" in cut and "line20" not in cut and "line99" in cut


def test_the_window_before_is_that_of_the_last_change_within_it():
    lines = NOW.split("\n")
    assert "\n".join(before_last_change("main.py", 1, lines, changes_of(DIFF))) == BEFORE
    for path, first in (("other.py", 1), ("main.py", 40), ("main.py", 2)):
        assert before_last_change(path, first, lines, changes_of(DIFF)) == tuple(lines)


@pytest.mark.parametrize(
    ("prompt", "window"),
    [
        (BLOCK, NOW),
        (CHANGE + BLOCK, NOW),
        (BLOCK.removesuffix("\n"), NOW),
        ("<|file_sep|>current/a.py:6:7\nx = 1\ny<|cursor|>\n<|file_sep|>updated/a.py:6:7\nx = 1\n", "y\n"),
        ("<|file_sep|>current/a\r\nx = 1\r\n<|file_sep|>updated/a\r\n", "x = 1\r\n"),
        ("<|file_sep|>current/a\nx = '<|file_sep|>'\n<|file_sep|>updated/a\n", "x = '<|file_sep|>'\n"),
        (BLOCK + "x\n<|file_sep|>other\n", None),
        (CHANGE, None),
        (NOW, None),
        ("", None),
        (BLOCK.replace("updated/main", "updated/other"), None),
        (BLOCK.replace("current/", "later/"), None),
        ("<|file_sep|>current/a\nx\n", None),
        ("<|file_sep|>current/a\n<|file_sep|>updated/a\n", None),
    ],
)
def test_the_window_is_found_in_the_prompt_of_an_editor(prompt, window):
    assert current_window(prompt) == window


ZED = {
    "model": "sweep-next-edit-1.5b",
    "prompt": CHANGE + BLOCK,
    "max_tokens": 64,
    "stop": ["<|file_sep|>", "</s>"],
}  # the fields that Zed sends, all of them


def posted(session, path: str, body: dict) -> dict:
    """Sends a request to a new server, and returns its answer."""

    async def ask(http):
        return (await http.post(path, json=body)).raise_for_status().json()

    return asking(ask, session)


def opened(session, monkeypatch) -> list:
    """Records the requests that the session's engine opens."""
    requests, usual = [], session.engine.open

    def open_recorded(asked, *more, **options):
        requests.append(asked)
        return usual(asked, *more, **options)

    monkeypatch.setattr(session.engine, "open", open_recorded)
    return requests


def test_zed_gets_the_models_answer_and_the_fields_that_it_reads(monkeypatch):
    session = completing(fim=True)
    requests = opened(session, monkeypatch)
    found = posted(session, "/v1/completions", ZED)
    assert found["choices"][0]["text"] == session.generate(ZED["prompt"], 64, stop=ZED["stop"]).text
    assert {"id": str, "object": str, "created": int, "model": str}.items() <= {
        name: type(value) for name, value in found.items()
    }.items()
    assert {"prompt_tokens", "completion_tokens", "total_tokens"} <= set(found["usage"])
    assert session.tokenizer.decode(requests[0].predictions[0]) == NOW
    (newline,) = session.tokenizer("\n", add_special_tokens=False)["input_ids"]
    found = posted(session, "/v1/completions", ZED | {"max_tokens": 3, "logit_bias": {str(newline): 100}})
    assert found["choices"][0]["text"] == "\n\n\n"  # Zed takes them as they are (zed#62635)


@pytest.mark.parametrize(("path", "more"), [("/v1/completions", {}), ("/completion", {"n_predict": 8})])
def test_a_prompts_window_and_a_given_prediction_are_both_predictions(path, more, monkeypatch):
    session = completing(fim=True)
    requests = opened(session, monkeypatch)
    posted(session, path, {"prompt": BLOCK, "max_tokens": 8, "prediction": "other text"} | more)
    assert list(map(session.tokenizer.decode, requests[0].predictions)) == [NOW, "other text"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    for part in toy(True):
        part.save_pretrained(folder)
    return folder


def ask(repo, saved, *more):
    return [
        "complete",
        "--repo",
        repo,
        "--file",
        "main.py",
        "--line",
        4,
        "--model",
        saved,
        "--method",
        "pld",
        "--layout",
        "next-edit",
        *more,
    ]


def test_the_command_prints_a_diff(repo, saved, capsys, monkeypatch):
    (repo / "changes").write_text(DIFF)
    asked = ask(repo, saved, "--changes", repo / "changes")
    monkeypatch.setattr("longgraft.completion.completer._CompletionText.step_through", answering(REWRITTEN))
    code, out, err = run(capsys, monkeypatch, *asked, "--explain")
    assert code == 0 and "recent changes and the lines around the cursor" in err and "no edit" not in err
    assert out == "".join(
        difflib.unified_diff(NOW.splitlines(True), REWRITTEN.splitlines(True), "a/main.py", "b/main.py")
    )
    found = json.loads(run(capsys, monkeypatch, *asked, "--json")[1])
    assert found["edit"] == vars(EDIT) and found["layout"] == "next-edit"
    assert run(capsys, monkeypatch, *asked, "--stream")[1] == out


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("eos", "the model would change nothing"),
        ("length", "the rewritten lines reached their limit of tokens"),
        ("stop", "a stop string cut the rewritten lines off, or the model"),
    ],
)
def test_the_command_says_why_there_is_no_edit(repo, saved, capsys, monkeypatch, ended, why):
    monkeypatch.setattr("longgraft.completion.completer._CompletionText.step_through", answering(NOW, ended))
    code, out, err = run(capsys, monkeypatch, *ask(repo, saved))
    assert (code, out) == (0, "\n") and f"no edit: {why}" in err


def test_a_diff_may_have_a_file_that_is_not_utf_8(repo, saved, capsys, monkeypatch):
    latin = DIFF.replace("main.py", "other.py").replace("Hello", "Gr\u00fc\u00df")
    (repo / "changes").write_bytes(latin.encode("latin-1") + DIFF.encode())
    code, out, _ = run(capsys, monkeypatch, *ask(repo, saved, "--changes", repo / "changes", "--prompt"))
    assert code == 0 and CHANGE + BLOCK in out and '    print("Gr\ufffd\ufffd!")' in out


def answering(says: str, ended: str = "eos"):
    """Returns a function in place of decoding, after which the model has answered with this text."""
    from longgraft.engine.session import Generation

    def step_through(self, request):
        with request:
            self.text = says
            return Generation(says, [], request.stats, ended)

    return step_through


@pytest.mark.parametrize("name", ["sweep-next-edit-0.5b", "sweep-next-edit-1.5b"])
def test_sweeps_models_load_from_files_of_their_form_and_suggest_edits(repo, name, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))
    entry = catalogue()[name]
    assert entry.hub.startswith("sweepai/") and not entry.wheels and entry.licence == "Apache-2.0"
    file = tmp_path / "cache" / "models" / f"{name}.gguf"
    write_gguf(
        file,
        tied=True,
        kind="Q8_0",
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|file_sep|>"),
        tokenizer__ggml__pre="qwen2",
        tokenizer__ggml__eot_token_id=None,
        tokenizer__ggml__bos_token_id=None,
    )
    monkeypatch.setitem(
        catalogue(),
        name,
        replace(entry, sha256=hashlib.sha256(file.read_bytes()).hexdigest(), size=file.stat().st_size),
    )
    session = longgraft.load(name, None, tell=False, method="pld")
    found = suggested(repo, REWRITTEN, session)
    separator = session.tokenizer.convert_tokens_to_ids("<|file_sep|>")
    assert found.edit == EDIT and found.prompt.ids.count(separator) == 3 and separator in found.prompt.ends
    assert session.tokenizer.decode(found.prompt.ids) == BLOCK  # its 512 positions have no room for more


def test_a_model_without_the_separator_is_refused(repo):
    with pytest.raises(ValueError, match=r"has no <\|file_sep\|>.* such as --model sweep-next-edit-1.5b"):
        suggested(repo, "x", completing())


def test_a_prompt_without_room_for_the_window_is_refused(repo):
    with pytest.raises(ValueError, match=r"prompt may have 64\. Allow more"):
        suggested(repo, "x", tokens=64)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--changes", "main.py"], "have no hunk"),
        (["--changes", "diff"], "only --layout next-edit reads changes"),
        (["--changes", "-", "--text", "-"], "both read standard input"),
    ],
)
def test_a_mistake_is_reported_before_a_model_is_loaded(repo, capsys, monkeypatch, words, said):
    monkeypatch.chdir(repo)
    (repo / "diff").write_text(DIFF)
    assert_before_loading(monkeypatch)
    code, _, err = run(capsys, monkeypatch, "complete", "--file", "main.py", "--line", "1", *words)
    assert code == 2 and said in err and len(err.splitlines()) == 1

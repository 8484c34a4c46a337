"""Code completion from end to end, in Python and on the command line, with a toy model that replays a text."""

from __future__ import annotations

import gc
import io
import json
import weakref

import pytest
from toys.commands import assert_before_loading, run
from toys.completing import NAMES, completing, toy

import longgraft
from longgraft.cli.complete import summed_up
from longgraft.completion.completer import Completer, CompletionOptions
from longgraft.completion.cursor import locate
from longgraft.engine.session import answer

MAIN = '''"""Uses the other file."""

from pkg.shapes import area


def tell(side):
    '''
REST = """


def last():
    return area(3)
"""


@pytest.fixture
def repo(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "shapes.py").write_text('def area(side):\n    """Of a square."""\n    return side * side\n')
    (tmp_path / "main.py").write_text(MAIN + REST)
    (tmp_path / ".env").write_text("PASSWORD=1\n")
    return tmp_path


def completed(repo, says: str, fim: bool = False, session=None, line: int = 7, file: str = "main.py", **options):
    """Completes with a model that replays the text `says`."""
    session = session or completing(fim)
    replay = session.tokenizer(says, add_special_tokens=False)["input_ids"]
    return longgraft.complete(repo, file, line, session=session, replay=replay, **options)


def test_a_block_is_completed_and_nothing_is_decoded_beyond_its_step(repo):
    told: list[str] = []
    found = completed(repo, "    return area(side)\n\n\ndef other():\n    pass\n" * 3, tell=told.append)
    assert (found.text, found.ended) == ("return area(side)", "block") == ("".join(told), found.ended)
    assert len(found.generation.token_ids) < 60 and found.generation.finish_reason == "stop"
    assert [piece.path for piece in found.used] == ["pkg/shapes.py"] and "like the lines" in found.used[0].why
    prompt = toy()[1].decode(found.prompt.ids)
    assert prompt.startswith("pkg/shapes.py\ndef area(side):") and prompt.endswith("main.py\n" + MAIN.rstrip(" "))
    assert found.gathered.left_out.secrets == (".env",) and "PASSWORD" not in prompt
    assert found.reused == 0 and found.seconds["first"] <= found.seconds["total"]


OTHER = "    return area(side)\n\n\ndef other():\n"


@pytest.mark.parametrize(
    ("says", "more", "text", "ended"),
    [
        (OTHER, {"until": "line"}, "return area(side)", "line"),
        (OTHER, {"until": "stop"}, OTHER[4:], "length"),
        (OTHER, {"until": "stop", "stop": "area"}, "return ", "stop"),
        (OTHER, {"max_new_tokens": 14}, "return are", "length"),
        (OTHER, {"until": "line", "column": 1}, "    return area(side)", "line"),
        (OTHER, {"until": "line", "column": 3}, "  return area(side)", "line"),
        ("  x = 1\ny\n", {}, "x = 1", "block"),
        ("        x = 1\ny\n", {}, "    x = 1", "block"),
    ],
)  # other indents
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_completion_ends_at_its_line_block_stop_string_or_limit(repo, says, more, text, ended, line_end):
    (repo / "main.py").write_bytes((MAIN + REST).replace("\n", line_end).encode())
    told: list[str] = []
    found = completed(repo, says, tell=told.append, **more)
    assert ("".join(told), found.text, found.ended) == (*[text.replace("\n", line_end)] * 2, ended)
    assert "\r" not in toy()[1].decode(found.prompt.ids)


def test_a_completion_that_repeats_itself_is_marked(repo):
    says = "side += 1\n    " * 9, "return area(side)\n\n\nx"
    again, once = (completed(repo, text, max_new_tokens=64) for text in says)
    assert again.loops and again.ended == "length" and "(length, repeats itself)" in summed_up(again)[-1]
    assert not once.loops and "repeats" not in summed_up(once)[-1]


def test_fill_in_the_middle_uses_the_models_own_tokens(repo):
    found = completed(repo, "return area(side)", fim=True)
    prompt, before = toy(True)[1].decode(found.prompt.ids), MAIN.removesuffix("    ")
    assert prompt.startswith(f"<|repo_name|>{repo.name}\n<|file_sep|>pkg/shapes.py\ndef area")
    assert prompt.endswith(f"<|file_sep|>main.py\n<|fim_prefix|>{before}<|fim_suffix|>{REST}<|fim_middle|>")
    assert (found.text, found.prompt.form) == ("return area(side)", "fim")
    assert completed(repo, "x", fim=True, layout="left-to-right").prompt.form == "left-to-right"


def test_the_models_own_tokens_end_a_completion(repo, monkeypatch):
    session, opened = completing(fim=True), []
    usual = session.open
    monkeypatch.setattr(session, "open", lambda *a, **kw: opened.append(a[4]) or usual(*a, **kw))
    longgraft.complete(repo, "main.py", 7, session=session, max_new_tokens=1)
    assert set(opened[0]) == {
        *session.eos,
        *map(session.tokenizer.convert_tokens_to_ids, NAMES),
        session.tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    }


def test_an_end_token_is_left_out_of_the_text():
    session = completing()
    ids = answer(session.open("abc", 6)).token_ids
    end = next(n for n in range(1, 6) if ids[n] not in ids[:n])
    found = answer(session.open("abc", 6, eos=[ids[end]]))
    assert found.token_ids == ids[: end + 1] and found.finish_reason == "eos"
    assert found.text == session.tokenizer.decode(ids[:end])


def test_text_after_the_cursor_is_proposed_if_the_prompt_lacks_it(repo):
    text = "\n\ndef last():\n    return area(3)\n"
    found = completed(repo, text, until="stop")
    assert found.prompt.after == 0 and found.generation.stats.accepted_by_origin["retrieved"] > len(text) / 2


def test_a_second_completion_reads_only_what_changed(repo):
    lines = [f"value_{n} = area({n})\n" for n in range(120)]
    (repo / "main.py").write_text("from pkg.shapes import area\n" + "".join(lines))
    session = completing(prefixes=0.1)
    first = longgraft.complete(repo, "main.py", 121, session=session, max_new_tokens=8)
    lines[-3] = "value = area(7)\n"
    (repo / "main.py").write_text("from pkg.shapes import area\n" + "".join(lines))
    second = longgraft.complete(repo, "main.py", 121, session=session, max_new_tokens=8)
    cold = longgraft.complete(repo, "main.py", 121, session=completing(), max_new_tokens=8)
    assert first.reused == cold.reused == 0 and second.reused > 0.8 * len(first.prompt.ids)
    assert second.generation.token_ids == cold.generation.token_ids and second.prompt.ids == cold.prompt.ids


def test_a_prompt_keeps_the_order_of_the_last_one(repo):
    for n in range(6):
        (repo / "pkg" / f"part{n}.py").write_text(f"def part{n}(side):\n    return {n}\n" * 4)
    head = "".join(f"from pkg.part{n} import part{n}\n" for n in range(3))
    (repo / "main.py").write_text(head + MAIN)
    session = completing(prefixes=0.1)
    first = read(repo, 4, session)
    (repo / "main.py").write_text(head + MAIN + "part2(part1(1), 5)\n    part5(3)\n    part4(3)\n    ")
    second, anew = read(repo, 13, session), read(repo, 13, completing())
    assert len(first) > 2 and second[: len(first)] == first and anew[: len(first)] != first
    changed = repo / "pkg" / f"{first[1].split('.')[0].split('/')[1]}.py"
    changed.write_text("# " + changed.read_text())
    third = read(repo, 13, session)  # text that its file no longer has is not shown
    assert third[0] == first[0] and third[: len(first)] != first


def test_a_file_that_git_now_ignores_is_not_shown_again(repo):
    session = completing(prefixes=0.1)
    assert "pkg/shapes.py:1" in read(repo, 4, session)
    (repo / ".gitignore").write_text("pkg/shapes.py\n")
    assert "pkg/shapes.py:1" not in read(repo, 4, session)


def read(repo, line: int, session) -> list[str]:
    """Lists the files in a prompt."""
    found = longgraft.complete(repo, "main.py", line, session=session, max_new_tokens=1)
    return [f"{piece.path}:{piece.first_line}" for piece in found.used]


def test_a_session_is_freed_with_everything_kept_for_it(repo):
    session = completing(prefixes=0.1)
    longgraft.complete(repo, "main.py", 7, session=session, max_new_tokens=1)
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", ["circle.py", "~nobody-of-this-name/a.py", "a" * 300 + ".py", "a\0.py"])
def test_a_name_that_leads_to_no_file_is_refused(repo, name):
    (repo / "circle.py").symlink_to("circle.py")
    with pytest.raises(ValueError, match=r"(leads to|is) no file"):  # Python 3.13 resolves a circle
        locate(repo, name, 1)


def test_a_byte_order_mark_is_left_out_of_the_text(repo):
    assert locate(repo, "main.py", 1, text="\ufeffx = 1\n").before == "x = 1"


def test_an_unsaved_file_has_the_given_text(repo):
    found = completed(repo, "1\ny\n", line=1, text="new = ", file="absent.py", until="line")
    assert found.text == "1" and toy()[1].decode(found.prompt.ids).endswith("absent.py\nnew =")


def test_a_mistake_raises_a_clear_error(repo):
    with pytest.raises(ValueError, match="chosen when it is loaded"):
        longgraft.complete(repo, "main.py", 1, session=completing(), method="ar")
    with pytest.raises(ValueError, match="allows 8,192 positions"):
        longgraft.complete(repo, "main.py", 1, session=completing(), max_new_tokens=9000)


def test_a_prompt_is_made_to_fit_the_model(repo):
    session = completing()
    (repo / "main.py").write_text("x = 1\n" * 3000)
    laid, _, _ = Completer(session).lay_out(repo, locate(repo, "main.py", 3000), CompletionOptions(tokens=10**6))
    assert 6000 < len(laid.ids) <= 8192 - 256


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    for part in toy():
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
        7,
        "--model",
        saved,
        "--method",
        "pld",
        "--max-new-tokens",
        5,
        *more,
    ]


def test_explain_lists_the_texts_read_and_the_reasons(repo, saved, capsys, monkeypatch):
    code, out, err = run(capsys, monkeypatch, *ask(repo, saved, "--explain", "--until", "stop"))
    assert code == 0 and "pkg/shapes.py:1-3" in err and "like the lines" in err and "the file, before the cursor" in err
    assert "taken to hold secrets, not read: .env" in err and "reused 0" in err and "decoded 5 tokens (length)" in err
    assert err.index("pkg/shapes.py") < err.index("the file, before the cursor")
    assert run(capsys, monkeypatch, *ask(repo, saved, "--stream", "--until", "stop"))[1] == out


def test_json_is_one_object(repo, saved, capsys, monkeypatch):
    code, out, err = run(capsys, monkeypatch, *ask(repo, saved, "--json", "--until", "line"))
    found = json.loads(out)
    assert (code, err) == (0, "") and found["layout"] == "left-to-right" and found["reused_tokens"] == 0
    assert found["used"][0]["path"] == "pkg/shapes.py" and found["used"][0]["lines"] == [1, 3]
    assert found["left_out"]["secrets"] == [".env"] and len(found["token_ids"]) == 5
    assert (
        found["prompt_tokens"]
        == found["stats"]["prompt_tokens"]
        == (sum(one["tokens"] for one in found["used"]) + len("main.py\n") + found["file_tokens"]["before"])
    )


def test_text_may_come_from_standard_input(repo, saved, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"unsaved = area(")))
    code, out, _ = run(
        capsys,
        monkeypatch,
        "complete",
        "--repo",
        repo,
        "--file",
        "main.py",
        "--line",
        1,
        "--text",
        "-",
        "--model",
        saved,
        "--method",
        "pld",
        "--prompt",
    )
    assert code == 0 and out.endswith("main.py\nunsaved = area(\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repo", "."], "--file FILE --line N"),
        (["--file", "main.py", "--line", "99"], "line 99"),
        (["--file", "main.py", "--line", "1", "--column", "99"], "column 99"),
        (["--file", "a.py", "--line", "1"], "a.py"),
        (["--file", "main.py", "--line", "1", "--until", "word"], "Known: line, block, stop"),
        (["--file", "main.py", "--line", "1", "--json", "--stream"], "--json goes with neither"),
        (["--file", "main.py", "--line", "1", "--tokens", "3"], "--tokens is 3"),
        (["--file", "main.py", "--line", "1", "--text", "absent"], "absent cannot be read"),
        (["--file", ".env", "--line", "1"], "hold secrets"),
        (["--file", "../x.py", "--line", "1"], "outside"),
        (["--file", "main.py", "--line", "1", "--temperature", "nan"], "--temperature is nan"),
    ],
)
def test_a_mistake_is_reported_before_a_model_is_loaded(repo, capsys, monkeypatch, words, said):
    monkeypatch.chdir(repo)
    assert_before_loading(monkeypatch)
    code, _, err = run(capsys, monkeypatch, "complete", *words)
    assert code == 2 and said in err and len(err.splitlines()) == 1

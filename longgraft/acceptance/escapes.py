"""Escaped characters of GBNF and of regular expressions, as llguidance reads them."""

from __future__ import annotations

import re

HEX = "[0-9a-fA-F]"
PAIR = rf"\\u[dD][89abAB]{HEX}{{2}}\\u[dD][c-fC-F]{HEX}{{2}}"  # JavaScript's two halves of one character
OCTAL = r"\\0[0-7]{0,2}"
# A backslash takes its next character with it: in \\0 the digit is a digit.
IN_REGEX = re.compile(rf"{PAIR}|{OCTAL}|\\.", re.DOTALL)
IN_GBNF = rf"{PAIR}|\\x{HEX}{{2}}|\\u{HEX}{{4}}|\\U{HEX}{{8}}|{OCTAL}|\\."
IN_LITERAL = re.compile(rf"{IN_GBNF}|[\x00-\x1f\x7f]", re.DOTALL)
# In a class of Rust's regular expressions, && and ~~ are operators, and [ begins an inner class.
IN_CLASS = re.compile(rf"{IN_GBNF}|[\x00-\x1f\x7f&~[]", re.DOTALL)
# Comments are found, too, because they may have quotes.
GBNF_PARTS = re.compile(r'#[^\r\n]*|"(?:[^"\\]|\\.)*"|\[(?:[^]\\]|\\.)*\]', re.DOTALL)
LETTERS = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}


def rust_regex(pattern: str) -> str:
    r"""Writes \0, octal numbers and surrogate pairs as Rust does; JSON schemas have JavaScript's syntax."""

    def rust(found: re.Match[str]) -> str:
        escape = found[0]
        if escape[1] in "u0":
            char = _character(escape)
            if char is not None:
                return rf"\x{{{ord(char):x}}}"
        return escape

    return IN_REGEX.sub(rust, pattern)


def readable_gbnf(text: str) -> str:
    """Writes the escapes of llama.cpp's grammars as llguidance's converter reads them.

    Unknown escapes stay, and the converter names them.
    """
    return GBNF_PARTS.sub(_readable_part, text)


def _readable_part(found: re.Match[str]) -> str:
    part = found[0]
    if part[0] == "#":
        return part
    in_class = part[0] == "["
    pattern = IN_CLASS if in_class else IN_LITERAL

    def readable(escape: re.Match[str]) -> str:
        char = _character(escape[0])
        if char is None:
            return escape[0]
        if char.isascii() and (in_class or not char.isprintable()) and not char.isalnum():
            return f"\\x{ord(char):02x}"
        return f"\\{char}" if char in '"\\' else char

    return part[0] + pattern.sub(readable, part[1:-1]) + part[-1]


def _character(escape: str) -> str | None:
    """Returns the character of an escape, or the character itself; None for an unknown escape."""
    if len(escape) == 1:
        return escape
    kind, digits = escape[1], escape[2:]
    if kind in LETTERS:
        return LETTERS[kind]
    if kind == "0":
        return chr(int(f"0{digits}", 8))
    if len(digits) > 8:
        return bytes.fromhex(digits.replace(r"\u", "")).decode("utf-16-be")
    if not digits or kind not in "xuU":
        return None
    code = int(digits, 16)
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise ValueError(f"{escape} is no character")
    return chr(code)

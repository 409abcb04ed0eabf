#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A header for Doxygen: doxygen_filter.py HEADER. Its plain comments become documentation; what they say stays.

A comment before a declaration is about it, one behind a declaration too, and the one at the top is about the file.
Comments are shown as they are laid out: their tables and examples are text.
"""

import pathlib
import re
import sys


def closed(text):
    """Text that ends no comment."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def escaped(text):
    """Text in which Doxygen finds no command, link or markup but code between backticks."""
    parts = re.sub(r"([\\@&$#<>\"%])", r"\\\1", closed(text)).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def block(lines, indent, begin):
    """Lines of a comment as a block of documentation; what is indented in it, but for lists, is text as it is."""
    made = [f"{indent}{begin}"]
    verbatim = listed = False
    for line in lines:
        listed = line.startswith("- ") or (listed and line.startswith("  "))
        indented = not listed and line.startswith(("  ", "|"))
        if indented and not verbatim:
            made.append(f"{indent}@verbatim")
        if verbatim and not indented and line.strip():
            made.append(f"{indent}@endverbatim")
            verbatim = False
        verbatim = verbatim or indented
        made.append(indent + (closed(line) if verbatim else escaped(line)))
    if verbatim:
        made.append(f"{indent}@endverbatim")
    return [*made, f"{indent}*/"]


def documented(text):
    lines = text.splitlines()
    made = []
    at = 0
    top = True
    while at < len(lines):
        comment = re.fullmatch(r"(\s*)//(?: (.*))?", lines[at])
        if comment is None:
            behind = re.fullmatch(r"(\s*[^\s/].*?)\s+// (.*)", lines[at])
            if behind and '"' not in behind[1] and not behind[1].startswith("}") and not behind[1].lstrip().startswith("#"):
                more = []
                column = lines[at].index("//", len(behind[1]))
                while at + 1 < len(lines) and re.fullmatch(rf"\s{{{column}}}// .*", lines[at + 1]):
                    at += 1
                    more.append(lines[at].strip()[3:])
                made.append(f"{behind[1]} /**< {escaped(' '.join([behind[2], *more]))} */")
            else:
                made.append(lines[at])
            at += 1
            continue
        indent = comment[1]
        body = []
        while at < len(lines) and (each := re.fullmatch(rf"{indent}//(?: (.*))?", lines[at])):
            body.append(each[1] or "")
            at += 1
        body = [line for line in body if not line.startswith(("SPDX-", "clang-format "))]
        if body:
            made += block(body, indent, "/** @file" if top else "/**")
        top = False
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    sys.stdout.write(documented(pathlib.Path(sys.argv[1]).read_text()))

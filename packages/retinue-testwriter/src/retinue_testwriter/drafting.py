"""Writes the test file from the findings about a module, as readable tests."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue_testwriter.formatting import WIDTH, format_assertion, format_expression
from retinue_testwriter.inside.calls import write_call
from retinue_testwriter.notes import Narrowing, render_code_notes, render_narrowing
from retinue_testwriter.probing import Findings, choose_python
from retinue_testwriter.strategies import PLAIN_DATA
from retinue_testwriter.subject import ProbedTarget, Subject, Untestable

_SHORT = 60
_NONE = Narrowing()


@dataclass(frozen=True, slots=True)
class Draft:
    """A test file, the names of its tests, and the targets without a test with the reason."""

    code: str
    tests: tuple[str, ...]
    untestable: tuple[Untestable, ...]


def draft_tests(
    subject: Subject, findings: Findings, narrowing: Mapping[str, Narrowing], number: int
) -> Draft:
    """Write the test file of round ``number`` (from 1), with tests of every target in the findings."""
    writer = _Writer(subject, findings, narrowing)
    for target in subject.targets:
        if target.name in findings.by_target:
            writer.add_target(target, findings.by_target[target.name])
    for alias, original in subject.same:
        writer.add_alias(alias, original)
    untestable = tuple(dict.fromkeys([*subject.untestable, *findings.untestable, *writer.untestable]))
    runner, appended = choose_python(subject)
    notes = {
        "module": subject.module,
        "root": subject.root,
        "source": subject.source,
        "python": subject.python,
        "runner": runner,
        "appended": appended,
        "round": number,
        "untestable": [entry.as_json() for entry in untestable],
        "narrowing": render_narrowing(narrowing),
    }
    return Draft(writer.render(notes), tuple(writer.tests), untestable)


class _Writer:
    """Collects tests and, from them, the imports and definitions that the file needs."""

    def __init__(self, subject: Subject, findings: Findings, narrowing: Mapping[str, Narrowing]) -> None:
        self._subject = subject
        self._findings = findings
        self._narrowing = narrowing
        self._sections: list[str] = []
        self._imports: set[str] = set()
        self._shared: dict[str, str] = {}
        self.tests: list[str] = []
        self.untestable: list[Untestable] = []

    def add_target(self, target: ProbedTarget, findings: Mapping[str, Any]) -> None:
        why = self._refuse(findings)
        if why:
            if not target.is_overload:
                self.untestable.append(Untestable(target.name, why))
            return
        shared = self._share_strategies(target, findings)
        parts = [self._write_property_test(target, findings)]
        parts += [self._write_relation(target, findings, relation) for relation in findings["relations"]]
        parts.append(self._write_pinned(target, findings))
        written = [part for part in parts if part]
        if written:
            head = f"# {self._title(target)}\n\n" + ("".join(shared) + "\n\n" if shared else "\n")
            self._sections.append(head + "\n\n\n".join(written))

    def _share_strategies(self, target: ProbedTarget, findings: Mapping[str, Any]) -> list[str]:
        """Define a name for each long strategy of a target when it is first used."""
        lines: list[str] = []
        for parameter, source in findings["chosen"].items():
            if len(source) <= _SHORT or source in self._shared:
                continue
            name = f"{parameter}_of_{make_slug(target.name)}"
            self._shared[source] = name
            lines.append(f"{name} = {format_expression(source, '', len(name) + 3)}\n")
        return lines

    def add_alias(self, alias: str, original: str) -> None:
        module = self._subject.module
        name = self._name(f"{alias}_is_{original}")
        self._sections.append(
            f"def {name}():\n"
            f'    """{alias} is another name of {original}."""\n'
            f"    assert {module}.{alias} is {module}.{original}"
        )

    def render(self, notes: Mapping[str, Any]) -> str:
        body = "\n\n\n".join(self._sections)
        definitions = self._list_definitions(body)
        everything = "\n".join([body, *definitions])
        module = self._subject.module
        modules = {module, *self._imports}
        for name in ("asyncio", "datetime", "decimal", "fractions", "io", "itertools", "pathlib"):
            if re.search(rf"(?<![\w.]){name}\.", everything):
                modules.add(name)
        needs_path = bool(notes["source"]) and not self._is_importable()
        standard = sorted({*modules, *(["sys"] if needs_path else [])})
        lines = [
            '"""' + self._describe_file(),
            '"""',
            "",
            render_code_notes(notes),
            "",
            *(f"import {name}" for name in standard if not needs_path or name != module),
            "",
        ]
        # only some files use pytest by name
        if "pytest." in everything:
            lines.append("import pytest")
        if "@given" in body:
            lines += ["from hypothesis import given, settings", "from hypothesis import strategies as st"]
        if needs_path:
            lines += ["", f"sys.path.insert(0, {notes['root']!r})", f"import {module}  # noqa: E402"]
        if "@given" in body:
            lines += [
                "",
                "repeatable = settings(max_examples=100, derandomize=True, deadline=None, database=None)",
            ]
        if definitions:
            lines += ["", *definitions]
        return "\n".join(lines) + "\n\n\n" + body + "\n"

    def _is_importable(self) -> bool:
        """Whether the interpreter finds the module by its name alone."""
        return self._subject.root in self._subject.search_path

    def _describe_file(self) -> str:
        version = ".".join(map(str, self._subject.version))
        return (
            f"Property-based tests of {self._subject.module}.\n\n"
            "Each property was observed by calling the module, and holds for the inputs generated here.\n"
            f"The pinned examples record what it returned on Python {version}: one that fails shows a\n"
            "change of behaviour, wanted or not.\n\n"
            f"Run with: pytest {make_file_name(self._subject.module)}"
        )

    def _list_definitions(self, body: str) -> list[str]:
        """Definitions of the shared strategies that the tests use."""
        wanted: list[str] = []
        for name, source in reversed(list(self._findings.instances.items())):
            if re.search(rf"\b{name}\b", "\n".join([body, *wanted])):
                wanted.insert(0, f"{name} = {format_expression(source, '', len(name) + 3)}")
        if "plain_data" in "\n".join([body, *wanted]):
            wanted.insert(0, f"plain_data = {format_expression(PLAIN_DATA, '', 13)}")
        return wanted

    # --- one target

    @staticmethod
    def _refuse(findings: Mapping[str, Any]) -> str:
        """Why a target gets no test; "" if it gets one."""
        counts = findings["counts"]
        if counts["refused"]:
            return f"it {findings['why_refused'] or 'acts on the world'} when called with generated arguments"
        if counts["slow"]:
            return "it takes too long, or never ends, on some generated arguments"
        if not counts["ok"]:
            raised = findings["surprises"] or findings["documented"]
            seen = ", ".join(entry["exception"] for entry in raised) or "nothing"
            return f"no generated call succeeded; each raised {seen}"
        return ""

    def _write_property_test(self, target: ProbedTarget, findings: Mapping[str, Any]) -> str:
        """The test of the properties of every call: result type, repeatability, invariants."""
        name = self._name(make_slug(target.name))
        change = self._narrowing.get(name, _NONE)
        if change.leave_out:
            self.untestable.append(Untestable(name, change.leave_out))
            return ""
        call = self._write_call(target, findings)
        assertions = self._list_assertions(findings, call)
        kept = [line for line in assertions if not change.drops(line)]
        handlers = self._list_handlers(findings, change)
        claim = self._describe_property(target, findings, kept, handlers)
        if not target.parameters:
            lines = [f"def {name}():", f'    """{claim}"""', f"    result = {call}"]
            lines += [f"    {line}" for line in kept]
            self.tests.append(name)
            return "\n".join(lines)
        result = "result = " if any("result" in line for line in kept) else ""
        lines = [*self._write_head(target, findings, name, change), *_write_doc(claim)]
        if handlers:
            lines += ["    try:", f"        {result}{format_expression(call, ' ' * 8, len(result))}"]
            for exception, reason in handlers:
                lines += [f"    except {exception}:  # {reason}", "        return"]
        else:
            lines.append(f"    {result}{format_expression(call, ' ' * 4, len(result))}")
        lines += [format_assertion(line, "    ") for line in kept]
        self.tests.append(name)
        return "\n".join(lines)

    def _write_relation(
        self, target: ProbedTarget, findings: Mapping[str, Any], held: Mapping[str, str]
    ) -> str:
        name = self._name(_snake(held["name"]))
        change = self._narrowing.get(name, _NONE)
        if change.leave_out or change.drops(f"assert {held['predicate']}"):
            return ""
        known = self._findings.relations[target.name]
        claim = next(relation.claim for relation in known if relation.name == held["name"])
        lines = [
            *self._write_head(target, findings, name, change),
            *_write_doc(claim[0].upper() + claim[1:] + "."),
        ]
        call = self._write_call(target, findings)
        handlers = self._list_handlers(findings, change)
        if handlers:
            lines += ["    try:", f"        result = {format_expression(call, ' ' * 8, 9)}"]
            for exception, reason in handlers:
                lines += [f"    except {exception}:  # {reason}", "        return"]
        else:
            lines.append(f"    result = {format_expression(call, ' ' * 4, 9)}")
        lines.append(f"    assert {held['predicate']}")
        self.tests.append(name)
        return "\n".join(lines)

    def _write_pinned(self, target: ProbedTarget, findings: Mapping[str, Any]) -> str:
        """Recorded results, as plain assertions."""
        name = self._name(f"{make_slug(target.name)}_pinned")
        change = self._narrowing.get(name, _NONE)
        if change.leave_out:
            return ""
        lines: list[str] = []
        refusals: list[str] = []
        for pin in findings["pins"]:
            if "raises" in pin:
                self._note_import(pin)
                block = [f"with pytest.raises({pin['raises']}):", f"    {pin['call']}"]
                if not change.drops(pin["call"]):
                    refusals += block
            elif not change.drops(pin["lines"][-1]):
                lines += [*pin["lines"][:-1], format_assertion(pin["lines"][-1])]
        if not lines and not refusals:
            return ""
        body = textwrap.indent("\n".join([*lines, *refusals]), "    ")
        self._note_modules(body)
        self.tests.append(name)
        doc = f'    """Pinned behaviour: what {self._title(target)} gave when these tests were written."""'
        return f"def {name}():\n{doc}\n{body}"

    def _write_head(
        self, target: ProbedTarget, findings: Mapping[str, Any], name: str, change: Narrowing
    ) -> list[str]:
        variables = [
            parameter.name for parameter in target.parameters if parameter.name in findings["chosen"]
        ]
        arguments = [
            f"{v}={self._shared.get(findings['chosen'][v], findings['chosen'][v])}" for v in variables
        ]
        one_line = f"@given({', '.join(arguments)})"
        if len(one_line) > WIDTH or "\n" in one_line:
            one_line = "@given(\n" + "".join(f"    {entry},\n" for entry in arguments) + ")"
        bound = f"@settings(repeatable, max_examples={change.examples})" if change.examples else "@repeatable"
        return [bound, one_line, _write_signature(name, variables)]

    def _write_call(self, target: ProbedTarget, findings: Mapping[str, Any]) -> str:
        described = {
            "template": target.template,
            "operands": target.operands,
            "wrappers": findings["wrappers"],
            "params": [
                {
                    "name": p.name,
                    "given_name": p.name.rstrip("_") if p.kind == "keyword" else p.name,
                    "kind": p.kind,
                    "default": p.default,
                }
                for p in target.parameters
            ],
        }
        return str(write_call(described, {name: name for name in findings["chosen"]}))

    def _list_assertions(self, findings: Mapping[str, Any], call: str) -> list[str]:
        lines: list[str] = []
        kinds = [entry["name"] for entry in findings["types"]]
        for entry in findings["types"]:
            self._note_import(entry)
        classes = [kind for kind in kinds if kind != "None"]
        if kinds == ["None"]:
            lines.append("assert result is None")
        elif classes:
            shown = classes[0] if len(classes) == 1 else f"({', '.join(classes)})"
            check = f"isinstance(result, {shown})"
            lines.append(f"assert {'result is None or ' if 'None' in kinds else ''}{check}")
        if findings["comparable"] and not findings["changes"] and kinds != ["None"]:
            lines.append(f"assert result == {call}" if call.endswith(")") else f"assert result == ({call})")
        return lines + [f"assert {statement}" for statement in findings["holds"]]

    def _list_handlers(self, findings: Mapping[str, Any], change: Narrowing) -> list[tuple[str, str]]:
        handlers = []
        for entry in findings["documented"]:
            self._note_import(entry)
            handlers.append((entry["exception"], "documented"))
        known = {exception for exception, _reason in handlers}
        handlers += [(exception, "documented") for exception in change.known if exception not in known]
        known |= set(change.known)
        for exception, call in dict(change.allow).items():
            if exception not in known:
                self._note_modules(f"{exception}.")
                handlers.append((exception, f"found, not documented: {_shorten(call)}"))
        return handlers

    def _describe_property(
        self,
        target: ProbedTarget,
        findings: Mapping[str, Any],
        kept: Sequence[str],
        handlers: Sequence[tuple[str, str]],
    ) -> str:
        kinds = [entry["name"].split(".")[-1] for entry in findings["types"]]
        title = self._title(target)
        what = f"{title} returns {_list_words(kinds)}" if kinds else f"{title} returns"
        if any(line.startswith("assert result == ") and "(" in line for line in kept):
            what += ", the same each time"
        if handlers:
            what += f", or raises {_list_words([e.split('.')[-1] for e, _ in handlers])}"
        return f"{what}."

    def _title(self, target: ProbedTarget) -> str:
        name = target.name.split(" ")[0]
        if target.template[0] == "{" or "{0}" in target.template:
            shown = target.template.replace("{arguments}", "…")
            for index in range(target.operands):
                shown = shown.replace(f"{{{index}}}", target.parameters[index].name)
            return shown
        return name

    def _name(self, slug: str) -> str:
        return f"test_{slug}"

    def _note_import(self, entry: Mapping[str, Any]) -> None:
        if entry.get("import"):
            self._imports.add(entry["import"])

    def _note_modules(self, source: str) -> None:
        """Imports for dotted names that a recorded value or exception mentions."""
        top = self._subject.module.split(".")[0]
        for match in re.finditer(r"(?<![\w.'\"])([a-z_][\w]*(?:\.[a-z_][\w]*)*)\.[A-Z]\w*", source):
            if match.group(1).split(".")[0] != top:
                self._imports.add(match.group(1))


def make_slug(target_name: str) -> str:
    """A target's name as a part of a test's name."""
    return _snake(re.sub(r"\W+", "_", target_name.replace("__", "").replace(" (", "_").replace(")", "")))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")


def _write_signature(name: str, variables: Sequence[str]) -> str:
    """The signature of a test, on several lines if it is long."""
    line = f"def {name}({', '.join(variables)}):"
    if len(line) <= WIDTH:
        return line
    inner = textwrap.fill(", ".join(variables), WIDTH, initial_indent="    ", subsequent_indent="    ")
    return f"def {name}(\n{inner}\n):"


def _list_words(words: Iterable[str]) -> str:
    unique = list(dict.fromkeys(words))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} or {unique[-1]}"


def _write_doc(claim: str) -> list[str]:
    return [f'    """{claim}"""']


def _shorten(text: str, width: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def make_file_name(module: str) -> str:
    """The name of the test file of a module."""
    stem = Path(module.replace(".", "_")).name
    return f"test_{stem}_.py" if keyword.iskeyword(stem) else f"test_{stem}.py"

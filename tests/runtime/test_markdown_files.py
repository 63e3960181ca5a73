"""Files of agents in Markdown: each fault is one line with the file, the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.markdown.agent import DIGEST_KEY, ThinkingAgent
from retinue.runtime.loading.markdown_files import (
    list_files,
    read_definition,
    read_folder,
    render_fault,
)
from retinue.runtime.loading.targets import load_target

HEAD = b"---\nname: x\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            HEAD + b"retinue:\n  limit: 3\n---\nWork.",
            "a.md:4: retinue.limit: unknown key; did you mean limits?",
        ),
        (HEAD + b"tools: [a\n---\nWork.", "a.md:4: "),
        (HEAD + b"name: y\n---\nWork.", "a.md:3: "),
        (HEAD + b"---\n", "a.md:3: there are no instructions; write them below the front matter"),
        (HEAD + b"---\n\xff\n", "a.md:4: it is not UTF-8; save it as UTF-8 text"),
        (b"x" * 5_000_000, "a.md: its 5,000,000 bytes exceed 1,048,576; make it smaller"),
        (b"# A page\n", "a.md:1: there is no front matter; begin the file with ---"),
        (b"", "a.md:1: there is no front matter; begin the file with ---"),
    ],
)
def test_a_fault_is_one_line_with_file_place_and_remedy(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(content)
    with pytest.raises(RetinueError) as error:
        read_definition(path)
    text = render_fault(error.value)
    assert line in text
    assert "\n" not in text
    assert error.value.remedy


def test_a_file_of_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.agent.md"
    path.write_bytes(
        b"\xef\xbb\xbf---\r\ndescription: Works: well\r\ntools: a, b\r\n---\r\nWork.\r\nMore.\r\n"
    )
    agent = read_definition(path)
    assert (agent.name, agent.description, agent.think.tools) == ("a", "Works: well", ("a", "b"))
    assert agent.think.instructions == "Work.\r\nMore."


def test_tools_that_are_all_of_other_programs_are_none_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("---\nname: x\ntools: Read, Bash\n---\nWork.\n")
    agent = read_definition(path)
    assert agent.think.tools == ()
    assert agent.warnings[-1] == (
        "a.md:3: tools: none of them is a skill of the mesh, so the agent has no tools"
    )


def test_of_two_files_with_a_name_the_first_has_it(tmp_path: Path) -> None:
    for file in ("a.md", "b.md", ".hidden.md", "README.md"):
        (tmp_path / file).write_text("---\nname: x\n---\nWork.\n")
    reading = read_folder(list_files(tmp_path))
    assert [path.name for path in reading.agents] == ["a.md"]
    assert {path.name: render_fault(fault) for path, fault in reading.faults.items()} == {
        "b.md": "b.md:2: name: the agent of a.md is called x already; give it another name"
    }


def test_an_agent_follows_an_edited_file_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("---\nname: x\ndescription: One.\nretinue: {skill: one}\n---\nWork.\n")
    agent = load_target(str(path)).agent
    assert isinstance(agent, ThinkingAgent)
    before = agent.record()
    path.write_text("---\nname: x\ndescription: Two.\nretinue: {skill: two, expose: true}\n---\nWork.\n")
    agent.adopt(read_definition(path))
    after = agent.record()
    assert ([skill.id for skill in after.skills], after.description) == (["two"], "Two.")
    assert after.skills[0].visibility == "exposed"
    assert after.annotations[DIGEST_KEY] != before.annotations[DIGEST_KEY]
    path.write_text("---\nname: x\nretinue: {output: {type: nothing}}\n---\nWork.\n")
    with pytest.raises(RetinueError):
        agent.adopt(read_definition(path))
    assert agent.record() == after

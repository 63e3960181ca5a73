"""The file of an agent in Markdown as an artifact: published, pulled, verified, mirrored and forgotten."""

from __future__ import annotations

from pathlib import Path

from retinue.storage.state import State
from tests.cli.conftest import Retinue

FILE = "---\r\nname: research-agent\r\ndescription: Answers.\r\n---\r\nWork.\r\n"


def test_a_file_is_published_pulled_and_forgotten_byte_for_byte(retinue: Retinue) -> None:
    path = Path("agent.md")
    path.write_bytes(FILE.encode())
    first = retinue("publish", str(path))
    assert first.stdout.startswith("prompts/research:v1@sha256:")
    assert retinue("publish", str(path)).stdout == first.stdout, "the same file is the same artifact"
    assert retinue("pull", "prompts/research", "-o", "-").stdout_bytes == FILE.encode()
    assert retinue("pull", "prompts/research").stdout.strip() == "research.md"
    assert "prompts/research: v1 removed" in retinue("forget", "prompts/research").stdout
    assert retinue("pull", "prompts/research", "-o", "-").exit_code != 0


def test_a_file_with_a_fault_is_not_published(retinue: Retinue) -> None:
    Path("agent.md").write_text("---\nname: x\nretinue: {limit: 1}\n---\nWork.\n")
    refused = retinue("publish", "agent.md")
    assert refused.exit_code != 0
    assert "agent.md:3: retinue.limit: unknown key" in refused.stderr


def test_files_are_mirrored_and_no_source_takes_them_for_cards(
    retinue: Retinue, retinue_home: Path, plan_card: bytes, tmp_path: Path
) -> None:
    Path("agent.md").write_bytes(FILE.encode())
    retinue("publish", "agent.md")
    retinue("mirror", str(State(retinue_home).registry), str(tmp_path / "other"))
    pulled = retinue("pull", "prompts/research", "--registry", str(tmp_path / "other"), "-o", "-")
    assert pulled.stdout_bytes == FILE.encode()
    listed = retinue("agents")
    assert "plan-agent" in listed.stdout
    assert "research" not in listed.stdout + listed.stderr


def test_a_file_is_signed_as_cards_are(retinue: Retinue) -> None:
    Path("agent.md").write_bytes(FILE.encode())
    retinue("publish", "agent.md")
    assert ", signed by " in retinue("pull", "prompts/research").stderr
    Path("retinue.toml").write_text("[signatures]\nsign = false\npolicy = 'require'\n")
    retinue("publish", "agent.md")
    refused = retinue("pull", "prompts/research", "--force")
    assert refused.exit_code != 0
    assert "it is not signed" in refused.stderr

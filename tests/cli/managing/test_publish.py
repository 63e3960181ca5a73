"""``publish``, ``pull`` and ``forget``."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import orjson
import pytest

from retinue.oci.codec.reference import digest_of
from tests.cli.conftest import Retinue
from tests.requirements import requirement
from tests.services import docker_registry_url

__all__ = ["docker_registry_url"]

CARD = (
    b'{ "name": "plan-agent",\n  "url": "http://localhost:8001",\n  "skills": [ {"id": "create_plan"} ] }\n'
)
FLOW = b"# as written\nname: hello\nsteps:\n  - id: one\n    skill: greet\n"
AGENT = """from retinue import Agent

agent = Agent("word-agent", version="2.0.0")


@agent.skill
async def count(text: str) -> int:
    return len(text)


@agent.skill(private=True)
async def hidden() -> int:
    return 1
"""


@pytest.fixture
def card(retinue: Retinue) -> str:
    Path("plan_card.json").write_bytes(CARD)
    return "plan_card.json"


@requirement("P-03")
def test_a_card_is_published_and_pulled_byte_for_byte(retinue: Retinue, card: str) -> None:
    published = orjson.loads(retinue("publish", card, "--json").stdout)
    assert (published["repository"], published["tag"]) == ("agents/plan", "v1")
    pulled = retinue("pull", "agents/plan:v1")
    assert pulled.stdout == "plan_agent_card.json\n"
    assert Path("plan_agent_card.json").read_bytes() == CARD
    assert retinue("pull", f"agents/plan@{published['digest']}", "-o", "-").stdout_bytes == CARD


@requirement("P-29")
def test_a_workflow_is_published_under_its_name_as_it_was_written(retinue: Retinue) -> None:
    Path("flow.yaml").write_bytes(FLOW)
    assert retinue("publish", "flow.yaml", "--tag", "v2").stdout.startswith("workflows/hello:v2@sha256:")
    assert retinue("pull", "workflows/hello", "-o", "-").stdout_bytes == FLOW
    assert "hello" in retinue("workflows").stdout


def test_a_wrong_workflow_is_not_published(retinue: Retinue) -> None:
    Path("flow.yaml").write_bytes(FLOW.replace(b"skill", b"skil"))
    refused = retinue("publish", "flow.yaml")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: flow.yaml:5: ")


def test_an_agent_in_python_is_published_with_its_url_and_without_its_private_skills(
    retinue: Retinue,
) -> None:
    Path("word.py").write_text(AGENT)
    assert retinue("publish", "word.py", "--url", "http://10.0.0.5:8001").exit_code == 0
    found = orjson.loads(retinue("pull", "agents/word", "-o", "-").stdout)
    assert (found["name"], found["url"], found["version"]) == ("word-agent", "http://10.0.0.5:8001", "2.0.0")
    assert [skill["id"] for skill in found["skills"]] == ["count"]


def test_an_agent_in_python_without_url_is_refused_with_both_ways_out(retinue: Retinue) -> None:
    Path("word.py").write_text(AGENT)
    refused = retinue("publish", "word.py")
    assert refused.exit_code == 2
    assert "--url http://host:port" in refused.stderr
    assert "retinue serve word.py" in refused.stderr


@pytest.mark.parametrize("url", ["localhost:8001", "ftp://host", "http://", "http://host:99999", "http://["])
def test_a_url_that_nobody_can_call_is_refused(url: str, retinue: Retinue) -> None:
    Path("word.py").write_text(AGENT)
    assert "is not an address" in retinue("publish", "word.py", "--url", url).stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"name": "x", "skills": []}', "card.json: url: it is missing"),
        (b'{"skills": [], "url": "http://x:1"}', "card.json: name is missing"),
        (b"{broken", "card.json"),
        (b'{"name": "x"}', "entry: it is missing"),
    ],
)
def test_a_file_that_is_no_card_is_refused(content: bytes, said: str, retinue: Retinue) -> None:
    Path("card.json").write_bytes(content)
    refused = retinue("publish", "card.json")
    assert refused.exit_code in (2, 7)
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_card_that_is_not_there_is_named(retinue: Retinue) -> None:
    refused = retinue("publish", "none.json")
    assert (refused.exit_code, refused.stderr) == (2, "error: target: no file none.json — check the path\n")


def test_a_card_of_another_name_is_not_published_over(retinue: Retinue, card: str) -> None:
    assert retinue("publish", card).exit_code == 0
    Path("other.json").write_bytes(CARD.replace(b"plan-agent", b"other-agent"))
    refused = retinue("publish", "other.json", "--repository", "agents/plan")
    assert refused.exit_code == 7
    assert "holds the card of plan-agent" in refused.stderr


def test_pull_replaces_a_file_only_when_told_to(retinue: Retinue, card: str) -> None:
    assert retinue("publish", card).exit_code == 0
    Path("mine.json").write_text("mine")
    refused = retinue("pull", "agents/plan", "-o", "mine.json")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert Path("mine.json").read_text() == "mine"
    assert retinue("pull", "agents/plan", "-o", "mine.json", "--force").exit_code == 0
    assert Path("mine.json").read_bytes() == CARD


@pytest.mark.parametrize(
    ("reference", "status", "said"),
    [
        ("agents/none", 3, "agents/none is not in"),
        ("AGENTS!", 2, "'AGENTS!' is not a reference"),
        ("127.0.0.1:1/agents/plan:v1", 7, "registry http://127.0.0.1:1 is unreachable"),
    ],
)
def test_what_cannot_be_pulled_is_said(reference: str, status: int, said: str, retinue: Retinue) -> None:
    refused = retinue("pull", reference)
    assert (refused.exit_code, refused.stdout) == (status, "")
    assert refused.stderr.startswith(f"error: {said}")


def test_content_that_was_tampered_with_is_not_written(
    retinue: Retinue, card: str, retinue_home: Path
) -> None:
    digest = orjson.loads(retinue("publish", card, "--json").stdout)["digest"]
    blobs = retinue_home / "registry" / "agents" / "plan" / "blobs" / "sha256"
    manifest = blobs / digest.removeprefix("sha256:")
    manifest.write_bytes(manifest.read_bytes().replace(b"create_plan", b"create_plot"))
    refused = retinue("pull", "agents/plan")
    assert refused.exit_code != 0
    assert "damaged" in refused.stderr
    assert not Path("plan_agent_card.json").exists()


def test_forget_takes_every_tag(retinue: Retinue, card: str) -> None:
    for tag in ("v1", "v2"):
        assert retinue("publish", card, "--tag", tag).exit_code == 0
    assert retinue("forget", "plan-agent").stdout == "agents/plan: v1, v2 removed\n"
    assert retinue("pull", "agents/plan").exit_code == 3
    assert retinue("forget", "plan-agent").exit_code == 3


def test_forget_takes_a_workflow_too_but_no_card_in_its_place(retinue: Retinue, card: str) -> None:
    Path("flow.yaml").write_bytes(FLOW)
    assert retinue("publish", "flow.yaml").exit_code == 0
    assert retinue("publish", card, "--repository", "workflows/mine").exit_code == 0
    assert retinue("forget", "workflows/hello").stdout == "workflows/hello: v1 removed\n"
    assert retinue("forget", "workflows/mine").exit_code == 7


@requirement("P-17")
def test_a_registry_of_ones_own_takes_the_place_of_the_state_folder(
    retinue: Retinue, card: str, docker_registry_url: str
) -> None:
    published = retinue("publish", card, "--registry", docker_registry_url)
    assert published.exit_code == 0
    assert docker_registry_url in published.stderr
    assert retinue("pull", "agents/plan").exit_code == 3
    pulled = retinue("pull", f"{docker_registry_url.removeprefix('http://')}/agents/plan:v1", "-o", "-")
    assert digest_of(pulled.stdout_bytes) == digest_of(CARD)
    found = retinue("find", "--skill", "create_plan", "--registry", docker_registry_url, "--url")
    assert found.stdout == "http://localhost:8001\n"
    assert retinue("forget", "plan-agent", "--registry", docker_registry_url).exit_code == 0


class _OtherAgent(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"name": "other-agent", "skills": []}')

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is that of http.server
        pass


def test_a_card_that_replaces_the_one_of_a_living_agent_is_published_with_a_warning(retinue: Retinue) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherAgent) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        living = f"http://127.0.0.1:{server.server_port}"
        Path("living.json").write_bytes(orjson.dumps({"name": "other-agent", "url": living, "skills": []}))
        Path("new.json").write_bytes(
            orjson.dumps({"name": "other-agent", "url": "http://127.0.0.1:1", "skills": []})
        )
        warnings = [retinue("publish", f"{name}.json").stderr for name in ("living", "living", "new")]
        server.shutdown()
    assert "was replaced" not in warnings[0] + warnings[1]
    assert f"warning: other-agent answers at {living}, and its card was replaced by this one" in warnings[2]


def test_an_agent_whose_url_is_that_of_another_agent_is_published_with_a_warning(retinue: Retinue) -> None:
    Path("words.py").write_text(AGENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), _OtherAgent) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        published = retinue("publish", "words.py", "--url", url)
        server.shutdown()
    assert published.exit_code == 0
    assert published.stdout.startswith("agents/word:v2@sha256:")
    told = [line for line in published.stderr.splitlines() if "another agent answers" in line]
    assert told == [
        "warning: at the url of this card another agent answers: other-agent; publish it with its own url"
    ]

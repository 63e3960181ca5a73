"""Exchange 3-13: what of file, inline JSON and variables wins, and what each error names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError
from retinue_koi.programs.config import CONFIGS, load_config, load_functions
from tests.requirements import requirement

AGENT: dict[str, Any] = {
    "agent": {
        "name": "from-file",
        "base_url": "http://127.0.0.1:8101/koi-net",
        "mcp_port": 8101,
        "traits": {"mood": "calm", "deep": {"a": 1, "b": 2}},
    },
    "network": {"first_contact": "http://127.0.0.1:9000/koi-net"},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps(AGENT))
    return path


@requirement("K-25")
def test_a_variable_wins_over_inline_json_and_that_over_the_file(file: Path) -> None:
    inline = {"agent": {"name": "from-inline", "traits": {"deep": {"b": 3}}}}
    environment = {"KOI_MCP_CONFIG": json.dumps(inline)}
    agent = load_config(file, environment).agent
    assert agent is not None
    assert agent.name == "from-inline"
    assert agent.traits == {"mood": "calm", "deep": {"a": 1, "b": 3}}
    assert agent.mcp_port == 8101
    environment |= {
        "KOI_MCP_AGENT_NAME": "from-variable",
        "KOI_MCP_AGENT_BASE_URL": "http://h:1/koi-net",
        "KOI_MCP_AGENT_MCP_PORT": "8199",
        "KOI_MCP_AGENT_TRAITS": '{"mood": "stern"}',
        "KOI_MCP_NETWORK_FIRST_CONTACT": "http://h:2/koi-net",
    }
    config = load_config(file, environment)
    agent = config.agent
    assert agent is not None
    assert (agent.name, agent.base_url, agent.mcp_port) == ("from-variable", "http://h:1/koi-net", 8199)
    assert agent.traits == {"mood": "stern"}
    assert config.network.first_contact == "http://h:2/koi-net"


@requirement("K-25")
@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"KOI_MCP_CONFIG": "{"}, "KOI_MCP_CONFIG"),
        ({"KOI_MCP_CONFIG": "[]"}, "KOI_MCP_CONFIG"),
        ({"KOI_MCP_AGENT_MCP_PORT": "many"}, "KOI_MCP_AGENT_MCP_PORT"),
        ({"KOI_MCP_AGENT_TRAITS": "calm"}, "KOI_MCP_AGENT_TRAITS"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_variable(
    file: Path, environment: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        load_config(file, environment)
    assert caught.value.field == named


@requirement("K-26")
def test_a_missing_key_is_an_error_that_names_the_file_and_the_key(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"agent": {"name": "a"}}')
    with pytest.raises(InvalidSettingError) as caught:
        load_config(path, {})
    assert caught.value.field == f"{path}: agent.base_url"
    with pytest.raises(InvalidSettingError, match="no\\.json"):
        load_config(tmp_path / "no.json", {})


@requirement("K-26")
def test_defaults_are_those_of_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"coordinator": {"name": "c", "base_url": "http://127.0.0.1:9000/koi-net"}}')
    config = load_config(path, {})
    assert config.agent is None
    assert config.coordinator is not None
    assert config.coordinator.mcp_registry_port == 9000
    assert config.network.first_contact is None
    path.write_text(json.dumps(AGENT))
    agent = load_config(path, {}).agent
    assert agent is not None
    assert agent.version == "1.0"


@requirement("K-27")
@requirement("K-30")
def test_the_three_configurations_have_the_seeds_names_and_ports() -> None:
    coordinator = load_config(CONFIGS / "coordinator.json", {}).coordinator
    assert coordinator is not None
    assert (coordinator.name, coordinator.mcp_registry_port) == ("koi-mcp-coordinator", 9000)
    found = []
    for file in ("agent1.json", "agent2.json"):
        config = load_config(CONFIGS / file, {})
        assert config.agent is not None
        assert config.network.first_contact == coordinator.base_url
        found.append((config.agent.name, config.agent.mcp_port))
    assert found == [("helpful-agent", 8101), ("creative-agent", 8102)]


@requirement("K-33")
def test_functions_of_the_demo_answer_for_its_callable_traits() -> None:
    config = load_config(CONFIGS / "agent1.json", {}).agent
    assert config is not None
    assert config.functions is not None
    functions = load_functions(config.functions, list(config.traits), CONFIGS)
    assert functions.keys() == {"calculate"}
    assert functions["calculate"]("(2 + 3) * -4 / 2") == -10
    for refused in ("__import__('os')", "2 +", "True", "9" * 300, "2 ** 9"):
        with pytest.raises(ValueError, match=r"expression|calculated"):
            functions["calculate"](refused)


def test_the_functions_of_the_demo_are_found_by_the_name_that_earlier_configurations_have() -> None:
    former = load_functions("retinue.runtime.koi.demo_functions", ["calculate"], CONFIGS)
    assert former == load_functions("retinue_koi.programs.demo_functions", ["calculate"], CONFIGS)
    assert former.keys() == {"calculate"}


def test_functions_come_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "own_tools.py").write_text("def double(x: int) -> int:\n    return 2 * x\n")
    functions = load_functions("own_tools.py", ["double", "mood"], tmp_path)
    assert functions["double"](4) == 8
    assert "mood" not in functions
    (tmp_path / "broken_tools.py").write_text("raise OSError('no')")
    with pytest.raises(InvalidSettingError, match=r"broken_tools\.py: no"):
        load_functions("broken_tools.py", [], tmp_path)

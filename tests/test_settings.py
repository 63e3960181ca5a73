"""Settings: ``retinue.toml``, the environment over it, flags over both, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from retinue.core.errors import InvalidSettingError
from retinue.settings import find_settings_file, load_settings, settings_class

EXAMPLE = """
registries = ["http://127.0.0.1:5000"]
[hub]
port = 9100
[[agents]]
target = "plan_agent.py"
[timeouts]
door_s = 5
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "retinue.toml"
    path.write_text(text, "utf-8")
    return path


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    settings = load_settings(start=tmp_path)
    assert settings.model_dump() == settings_class()().model_dump()
    assert (settings.hub.host, settings.hub.port) == ("127.0.0.1", 9000)
    assert (settings.timeouts.door_s, settings.timeouts.agent_call_s) == (60, 30)
    assert settings.timeouts.registry_s == 10
    assert (settings.trace.max_depth, settings.trace.calls) == (5, 10_000)
    assert (settings.directory.ttl_s, settings.directory.refresh_s) == (300, 60)


def test_the_example_of_the_design_is_read(tmp_path: Path) -> None:
    write(tmp_path, EXAMPLE)
    settings = load_settings(start=tmp_path)
    assert settings.registries == ("http://127.0.0.1:5000",)
    assert settings.hub.port == 9100
    assert [agent.target for agent in settings.agents] == ["plan_agent.py"]


def test_the_nearest_file_upward_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    outer = write(tmp_path, "[directory]\ntag = 'outer'")
    assert find_settings_file(deep) == outer
    assert load_settings(start=deep).directory.tag == "outer"
    inner = write(tmp_path / "a", "[directory]\ntag = 'inner'")
    assert find_settings_file(deep) == inner


def test_the_environment_wins_over_the_file_and_a_flag_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "[hub]\nport = 9100\nhost = 'localhost'\n[trace]\ncalls = 7")
    monkeypatch.setenv("RETINUE_HUB__PORT", "9200")
    settings = load_settings(start=tmp_path)
    assert (settings.hub.port, settings.hub.host, settings.trace.calls) == (9200, "localhost", 7)
    settings = load_settings({"hub": {"port": 9300}}, start=tmp_path)
    assert (settings.hub.port, settings.hub.host) == (9300, "localhost")


def test_the_hub_to_join_and_the_state_folder_are_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "[hub]\nport = 9100")
    monkeypatch.setenv("RETINUE_HUB", "http://127.0.0.1:9000")
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path))
    assert load_settings(start=tmp_path).hub.port == 9100


def test_settings_are_frozen(tmp_path: Path) -> None:
    settings = load_settings(start=tmp_path)
    with pytest.raises(ValidationError):
        settings.registries = ()  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.hub.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[hub]\nport = 70000", "hub.port"),
        ("[hub]\nport = 'many'", "hub.port"),
        ("[hub]\nprot = 9000", "hub.prot"),
        ("[hubb]\nport = 9000", "hubb"),
        ("[timeouts]\ndoor_s = 0", "timeouts.door_s"),
        ("[trace]\nmax_depth = 0", "trace.max_depth"),
        ("[[agents]]\nport = 1", "agents.0.target"),
        ("registries = 5", "registries"),
    ],
)
def test_a_wrong_value_is_refused_with_its_file_and_place(tmp_path: Path, text: str, place: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert caught.value.field == f"{path}: {place}"
    assert "\n" not in caught.value.message
    assert caught.value.remedy


def test_a_key_that_does_not_exist_is_called_so(tmp_path: Path) -> None:
    path = write(tmp_path, "[hub]\nprot = 9000")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert caught.value.message == f"{path}: hub.prot: unknown key"


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "[hub]\nport = ?\n")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert caught.value.message.startswith(f"{path}: ")
    assert "line 2" in caught.value.message


def test_a_wrong_variable_is_named_even_where_a_file_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "[hub]\nport = 9100")
    monkeypatch.setenv("RETINUE_HUB__PORT", "many")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert caught.value.field == "RETINUE_HUB__PORT"


def test_a_variable_that_should_hold_a_table_says_how_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_TRACE", "deep")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert "trace" in caught.value.message
    assert "RETINUE_HUB__PORT=9000" in caught.value.remedy


def test_a_wrong_value_is_not_repeated_for_it_may_be_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_HUB__PORT", "hunter2")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert "hunter2" not in caught.value.message


def test_a_wrong_flag_is_named_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        load_settings({"hub": {"port": -1}}, start=tmp_path)
    assert caught.value.field == "hub.port"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jwks_url = 'https://a/keys'", "require issuer and audience"),
        ("jwks_url = 'https://a/keys'\nissuer = 'https://a'", "require issuer and audience"),
        ("jwks_url = 'https://a'\njwks_file = 'b'", "give jwks_url or jwks_file, not both"),
        (
            "jwks_url = 'http://a/keys'\nissuer = 'https://a'\naudience = ['x']",
            "jwks_url must begin with https://",
        ),
        ("scopes = {agents = 'mehs'}", "'exposed', 'mesh' or 'runs_code'"),
        ("anonymus = false", "unknown key"),
    ],
)
def test_a_half_made_lock_is_refused(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, f"[auth]\n{text}\n")
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert said in str(caught.value)
    assert "Value error" not in str(caught.value)


def test_keys_of_an_issuer_on_this_machine_need_no_tls(tmp_path: Path) -> None:
    write(tmp_path, "[auth]\njwks_url = 'http://127.0.0.1:1/keys'\nissuer = 'a'\naudience = ['b']\n")
    assert load_settings(start=tmp_path).auth.audience == ("b",)


def test_an_empty_list_of_callers_is_not_the_same_as_none(tmp_path: Path) -> None:
    write(tmp_path, "[access.plan-agent]\nreceive = []\n[access.build-agent]\nsend = ['test-agent']\n")
    access = load_settings(start=tmp_path).access
    assert (access["plan-agent"].receive, access["plan-agent"].send) == ((), None)
    assert (access["build-agent"].receive, access["build-agent"].send) == (None, ("test-agent",))


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (
            'registries = "http://a"',
            "registries: Input should be a list; found a string of 8 characters",
            "retinue docs settings",
        ),
        ("[hub]\nprt = 1", "hub.prt: unknown key", "did you mean port?"),
        ("databse = 1", "databse: unknown key", "did you mean database?"),
        ("[[agents]]\ntaget = 'x'", "agents.0.taget: unknown key", "did you mean target?"),
        ("[registry.a]\nurl = 'x'\nmesch = true", "registry.a.mesch: unknown key", "did you mean mesh?"),
        (
            "[trolley]\nservers = []",
            "trolley: unknown key",
            "if a part brings [trolley], install its distribution, or remove the table",
        ),
        (
            "[hubb]\nport = 9000",
            "hubb: unknown key",
            "did you mean hub? — if a part brings [hubb], install its distribution, or remove the table",
        ),
        (
            "runs = 3",
            "runs: Input should be a table; found an integer",
            "retinue docs settings lists the settings",
        ),
        (
            "llm = 3",
            "llm: Input should be a table; found an integer",
            "retinue docs settings lists the settings",
        ),
        (
            "[hub]\nport = [1]",
            "hub.port: Input should be a valid integer; found a list",
            "retinue docs settings lists the settings",
        ),
    ],
)
def test_a_wrong_setting_is_told_in_the_words_of_the_file(
    tmp_path: Path, text: str, message: str, remedy: str
) -> None:
    (tmp_path / "retinue.toml").write_text(text)
    with pytest.raises(InvalidSettingError) as caught:
        load_settings(start=tmp_path)
    assert caught.value.message.removeprefix(f"{tmp_path / 'retinue.toml'}: ") == message
    assert caught.value.remedy.startswith(remedy)

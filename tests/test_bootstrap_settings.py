"""The settings that a user gave pip or uv are found where those two look for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.package_settings import PYPI, Settings, is_pypi, make_uv_environment, read_settings


def _read(home: Path, **environment: str) -> Settings:
    return read_settings({"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), **environment})


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def pip_conf(tmp_path: Path) -> Path:
    """A user's pip.conf with a mirror behind a certificate of its own."""
    text = "[global]\nindex-url = https://mirror/simple/\ncert = /ca.pem\ntrusted-host =\n  a\n  b:8443\n"
    return _write(tmp_path / ".config/pip/pip.conf", text)


def test_pip_conf_names_the_index_the_certificate_and_the_trusted_hosts(
    tmp_path: Path, pip_conf: Path
) -> None:
    settings = _read(tmp_path)
    assert settings["index-url"] == "https://mirror/simple"
    assert settings["cert"] == "/ca.pem"
    assert settings["trusted-host"].split() == ["a", "b:8443"]
    assert not is_pypi(settings)


@pytest.mark.parametrize("place", ["xdg/pip/pip.conf", ".pip/pip.conf", ".config/pip/pip.conf", "custom.ini"])
def test_pip_conf_is_found_in_every_place_that_pip_knows(tmp_path: Path, place: str) -> None:
    _write(tmp_path / place, "[install]\nindex_url = https://m/simple\n")
    chosen = {"PIP_CONFIG_FILE": str(tmp_path / place)} if place == "custom.ini" else {}
    assert _read(tmp_path, **chosen)["index-url"] == "https://m/simple"


def test_pip_config_file_set_to_null_switches_the_files_off(tmp_path: Path, pip_conf: Path) -> None:
    assert is_pypi(_read(tmp_path, PIP_CONFIG_FILE=os.devnull))


def test_the_environment_wins_over_the_files_and_uv_over_pip(tmp_path: Path, pip_conf: Path) -> None:
    assert _read(tmp_path, PIP_INDEX_URL="https://p/simple")["index-url"] == "https://p/simple"
    _write(tmp_path / ".config/uv/uv.toml", '[[index]]\nurl = "https://u/simple"\ndefault = true\n')
    assert _read(tmp_path, PIP_INDEX_URL="https://p/simple")["index-url"] == "https://u/simple"
    assert _read(tmp_path, UV_INDEX_URL="https://e/simple")["index-url"] == "https://e/simple"
    assert (
        _read(tmp_path, UV_DEFAULT_INDEX="corp=https://d/simple?a=b")["index-url"] == "https://d/simple?a=b"
    )


@pytest.mark.parametrize("spelling", [PYPI, f"{PYPI}/"])
def test_pypi_by_any_spelling_leaves_the_lock_usable(tmp_path: Path, spelling: str) -> None:
    environment = {"UV_DEFAULT_INDEX": spelling, "UV_INDEX_URL": spelling}
    settings = _read(tmp_path, **environment)
    assert is_pypi(settings)
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & make_uv_environment(settings, environment).keys()


def test_uv_trusts_what_pip_trusts_unless_told_otherwise(tmp_path: Path, pip_conf: Path) -> None:
    environment = make_uv_environment(_read(tmp_path), {})
    assert environment["SSL_CERT_FILE"] == "/ca.pem"
    assert environment["UV_INSECURE_HOST"] == "a b:8443"
    assert environment["UV_PYTHON_DOWNLOADS"] == "never"
    told = {"SSL_CERT_FILE": "/mine.pem", "UV_HTTP_TIMEOUT": "7"}
    kept = make_uv_environment(_read(tmp_path, **told), told)
    assert (kept["SSL_CERT_FILE"], kept["UV_HTTP_TIMEOUT"]) == ("/mine.pem", "7")
    assert "UV_SYSTEM_CERTS" not in make_uv_environment({}, {"UV_NATIVE_TLS": "false"})


def test_a_mirror_and_folders_reach_uv_by_environment_and_not_as_options(tmp_path: Path) -> None:
    settings = _read(
        tmp_path,
        PIP_INDEX_URL="https://bob:secret@mirror/simple",
        PIP_EXTRA_INDEX_URL="https://one/simple https://two/simple",
        PIP_FIND_LINKS="/wheels /more",
    )
    found = make_uv_environment(settings, {})
    assert {name: value for name, value in found.items() if "INDEX" in name or "LINKS" in name} == {
        "UV_DEFAULT_INDEX": "https://bob:secret@mirror/simple",
        "UV_INDEX": "https://one/simple https://two/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
    }


def test_no_index_means_that_the_lock_s_addresses_are_not_used(tmp_path: Path) -> None:
    assert not is_pypi(_read(tmp_path, PIP_NO_INDEX="1"))
    assert is_pypi(_read(tmp_path, PIP_NO_INDEX="0"))


@pytest.mark.parametrize(
    ("place", "text"), [(".config/pip/pip.conf", "index-url"), (".config/uv/uv.toml", "[[")]
)
def test_a_broken_configuration_file_is_named(tmp_path: Path, place: str, text: str) -> None:
    path = _write(tmp_path / place, text)
    with pytest.raises(SystemExit, match="cannot be read") as caught:
        _read(tmp_path)
    assert str(path) in str(caught.value)

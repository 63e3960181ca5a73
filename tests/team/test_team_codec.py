"""Layers, lists of files and configs of teams: one form for a content, and nothing else is read."""

from __future__ import annotations

import io
import tarfile
import unicodedata
from dataclasses import replace

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError, TeamRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import parse_manifest
from retinue.oci.codec.reference import digest_of
from retinue.team.definition import parse_definition
from retinue.team.files import FileRow, TeamFile, find_list_problem, find_path_problem
from retinue.team.layers import read_layer, render_layer
from retinue.team.lock import TeamLock
from retinue.team.package import layers_by_kind, open_team, pack_team, read_files

DEFINITION = b"""
name = "words"
version = "1.4.0"
[[agents]]
target = "agents/word/agent.py"
env = { KEY = "${WORD_KEY}" }
[secrets]
WORD_KEY = "key of the dictionary"
"""

PINNED = "sha256:6c92e4cc14e6edcbe799e4afbc19457b04a58b7396d01dc2c42e59a0f9e9f5a6"
"""Recorded; another digest means that packing has changed."""

NAMES = st.text(st.characters(categories=("L", "N")), min_size=1, max_size=60).map(
    lambda text: unicodedata.normalize("NFC", text)
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join).filter(lambda path: not find_path_problem(path))
FILES = st.dictionaries(PATHS, st.binary(max_size=2000), min_size=1, max_size=6).map(
    lambda contents: [TeamFile(path, "agents", content) for path, content in contents.items()]
)


def a_package(content: bytes = b"agent = 1\n") -> Package:
    files = [
        TeamFile("team.toml", "team", DEFINITION),
        TeamFile("agents/word/agent.py", "agents", content),
    ]
    locked = {"agents/word/agent.py": {"name": "word-agent"}}
    lock = TeamLock.model_validate({"schema": 1, "agents": locked})
    return pack_team(parse_definition(DEFINITION), lock, files)


def rows_of(files: list[TeamFile]) -> list[FileRow]:
    return [file.row for file in files]


@given(FILES, st.randoms())
def test_equal_files_give_equal_archives_in_any_order_and_tar_reads_them(
    files: list[TeamFile], random: object
) -> None:
    archive = render_layer(files)
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert render_layer(shuffled) == archive
    assert sorted(read_layer(archive, rows_of(files), where="x"), key=lambda f: f.path) == sorted(
        files, key=lambda f: f.path
    )
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        read = {}
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            assert (member.mode, member.mtime, member.uid, member.uname) == (0o644, 0, 0, "")
            read[member.name] = file.read()
    assert read == {file.path: file.content for file in files}


@given(FILES, st.data())
def test_an_archive_with_one_other_byte_is_refused(files: list[TeamFile], data: st.DataObject) -> None:
    archive = bytearray(render_layer(files))
    position = data.draw(st.integers(0, len(archive) - 1))
    archive[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TeamRefusedError):
        list(read_layer(bytes(archive), rows_of(files), where="x"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
)
def test_links_devices_and_folders_in_an_archive_are_refused(kind: bytes) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(TeamRefusedError):
        list(read_layer(target.getvalue(), [TeamFile("a", "agents", b"").row], where="x"))


def test_more_or_less_than_the_list_is_refused() -> None:
    files = [TeamFile("a", "agents", b"1"), TeamFile("b", "agents", b"2")]
    with pytest.raises(TeamRefusedError, match="more than the files"):
        list(read_layer(render_layer(files), rows_of(files[:1]), where="x"))
    with pytest.raises(TeamRefusedError):
        list(read_layer(render_layer(files[:1]), rows_of(files), where="x"))
    with pytest.raises(TeamRefusedError, match="more than the files"):
        list(read_layer(render_layer(files) + bytes(512), rows_of(files), where="x"))


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../a", "a/../b", "a//b", "./a", "", "a/", "a\nb", "a\\b", "C:a", "A\u030a", "a."),
        *(" a", "x/evil.pth", "sitecustomize.py", "a/.git/hooks/x", "__pycache__/a", ".env", ".ENV.local"),
        *("k/id.pem", "retinue.toml", "a/lib.so", "x" * 300),
    ],
)
def test_a_path_that_could_do_harm_is_refused(path: str) -> None:
    assert find_path_problem(path)


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["a/B.py", "a/b.py"], "upper and lower case"),
        (["A/x", "a/y"], "upper and lower case"),
        (["a", "a"], "twice"),
        (["a", "a/b"], "a file and a folder"),
        ([f"f{number}" for number in range(2001)], "at most 2,000"),
    ],
)
def test_a_list_that_file_systems_read_differently_is_refused(paths: list[str], problem: str) -> None:
    assert problem in find_list_problem(FileRow(path, "agents", 1, "0" * 64) for path in paths)


def test_sizes_are_limited_before_anything_is_fetched() -> None:
    mebibyte = 1024 * 1024
    assert "at most" in find_list_problem([FileRow("a", "agents", 16 * mebibyte + 1, "")])
    many = [
        FileRow(f"{layer}{n}", layer, 13 * mebibyte, "") for layer in ("agents", "prompts") for n in range(5)
    ]
    assert "layer agents" in find_list_problem(many)


def test_a_package_is_read_back_and_is_the_same_each_time() -> None:
    package = a_package()
    assert a_package().digest == package.digest
    manifest = parse_manifest(package.manifest_bytes, where="x")
    team = open_team(manifest, package.blobs[manifest.config.digest], digest=package.digest, where="x")
    layers = {kind: package.blobs[blob.digest] for kind, blob in layers_by_kind(manifest).items()}
    files = {file.path: file.content for file in read_files(team, layers, where="x")}
    assert files["agents/word/agent.py"] == b"agent = 1\n"
    assert (team.name, team.version, team.lock.agents["agents/word/agent.py"].name) == (
        "words",
        "1.4.0",
        "word-agent",
    )


def test_the_digest_of_this_content_is_this_one_on_every_python() -> None:
    assert a_package().digest == PINNED


def test_a_config_that_is_not_the_one_of_the_manifest_is_refused() -> None:
    package, other = a_package(), a_package(b"agent = 2\n")
    manifest = parse_manifest(package.manifest_bytes, where="x")
    config = other.blobs[other.manifest.config.digest]
    with pytest.raises(TeamRefusedError, match="digest of the manifest"):
        open_team(manifest, config, digest=package.digest, where="x")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda config: config["files"][0].update(path="../team.toml"), "leaves the folder"),
        (
            lambda config: config["files"].append({**config["files"][0], "path": "AGENTS/x"}),
            "upper and lower",
        ),
        (lambda config: config["team"].update(auth={}), "unknown key"),
        (lambda config: config["team"]["agents"][0].update(port=80), "1024"),
        (lambda config: config.update(schema=2), "schema"),
        (lambda config: config.update(files=7), "cannot be read"),
    ],
)
def test_a_config_that_pack_does_not_write_is_refused(change: object, problem: str) -> None:
    package = a_package()
    config = orjson.loads(package.blobs[package.manifest.config.digest])
    change(config)  # type: ignore[operator]
    content = rfc8785.dumps(config)
    manifest = replace(
        package.manifest,
        config=replace(package.manifest.config, digest=digest_of(content), size_bytes=len(content)),
    )
    with pytest.raises(TeamRefusedError, match=problem):
        open_team(manifest, content, digest=package.digest, where="x")


@pytest.mark.parametrize(
    ("text", "field", "remedy"),
    [
        ('nam = "x"', "team.toml: nam", "did you mean name?"),
        ("[auth]\nanonymous = true", "team.toml: auth", "belongs to the machine"),
        ("version = 3", "team.toml: version", "describes team.toml"),
        ('version = "1"', "team.toml: version", "correct the file"),
        ('version = "1.4.0-01"', "team.toml: version", "correct the file"),
        ('version = "1.4.0+2"', "team.toml: version", "correct the file"),
        ('[workflows]\nfiles = [""]', "team.toml: workflows.files.0", "workflows/*.yaml"),
        ('[imports.f]\nnpm = "server@latest"', "team.toml: imports.f", "correct the file"),
        ('[[agents]]\ntarget = "agent.py"', "team.toml: agents.1", "correct the file"),
        ('[[agents]]\ntarget = "a/agent.py"\nenv = { K = "${NONE}" }', "team.toml", "[secrets]"),
        ('[imports.f]\nurl = "http://f"\n[access.f]\nreceive = []', "team.toml", "policy"),
        ('[llm.m]\nmodel = "gpt-latest"', "team.toml", "correct the file"),
    ],
)
def test_a_wrong_team_toml_names_field_and_remedy(text: str, field: str, remedy: str) -> None:
    start = b'name = "x"\nversion = "1.0.0"\n'
    if text.startswith(("nam ", "version")):
        start = b'name = "x"\n' if text.startswith("version") else b'version = "1.0.0"\n'
    agents = b'[[agents]]\ntarget = "b/agent.py"\n'
    content = start + (text.encode() + b"\n" + agents if "[" not in text else agents + text.encode())
    with pytest.raises(InvalidSettingError) as caught:
        parse_definition(content)
    assert caught.value.field.startswith(field), caught.value.message
    assert remedy in caught.value.remedy

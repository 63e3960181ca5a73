"""Packages in a digest: which wheels and archives are chosen, and which are refused."""

from __future__ import annotations

import hashlib
import platform
from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO

import orjson
import pytest

from retinue.core.errors import InvalidSettingError, StateError, TeamRefusedError
from retinue.runtime.commands.teams import commands, packing
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.teams.environments import Environments
from retinue.runtime.teams.store import TeamStore
from retinue.storage.state import State
from retinue.team.consent import describe_consent
from retinue.team.files import MAX_FILE_BYTES, FileRow, TeamFile, find_list_problem
from retinue.team.lock import TeamLock
from retinue.team.vendored import (
    check_vendored,
    choose_own_wheels,
    choose_wheels,
    list_archives,
    use_archives,
)
from tests.team.conftest import WriteTeam

OWN = platform.system().lower()


def wheel(name: str, version: str, tags: str, content: bytes = b"") -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    url = f"https://files.example/{name}-{version}-{tags}.whl"
    return f'{{ url = "{url}", hashes = {{ sha256 = "{sha256}" }} }}'


def pylock(*packages: str) -> bytes:
    head = 'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.11"\n'
    return (head + "".join(f"[[packages]]\n{package}\n" for package in packages)).encode()


def package(name: str, *wheels: str, marker: str = "") -> str:
    line = f'marker = "{marker}"\n' if marker else ""
    return f'name = "{name}"\nversion = "1.0"\n{line}wheels = [{", ".join(wheels)}]'


def npm_lock(archives: Mapping[str, bytes], **more: object) -> bytes:
    rows: dict[str, object] = {"": {}}
    for name, content in archives.items():
        integrity = "sha512-" + b64encode(hashlib.sha512(content).digest()).decode()
        rows[f"node_modules/{name}"] = {"version": "1.2.3", "integrity": integrity, **more}
    return orjson.dumps({"lockfileVersion": 3, "packages": rows})


def test_wheels_are_chosen_for_every_python_and_by_the_markers_of_the_lock() -> None:
    only_old = package("old", wheel("old", "1.0", "py3-none-any"), marker="python_version < '3.12'")
    patch = package("patch", wheel("patch", "1.0", "py3-none-any"), marker="python_full_version < '3.11.3'")
    other = package("other", wheel("other", "1.0", "py3-none-any"), marker="sys_platform == 'nowhere'")
    built = package("built", *(wheel("built", "1.0", f"cp3{n}-cp3{n}-linux_x86_64") for n in (11, 12, 13)))
    built = built.replace("linux_x86_64", _own_platform())
    chosen = choose_wheels(pylock(only_old, patch, other, built))
    assert {version: [wheel.name for wheel in wheels] for version, wheels in chosen.items()} == {
        (3, 11): ["old", "patch", "built"], (3, 12): ["built"], (3, 13): ["built"]
    }  # fmt: skip
    assert len({wheels[-1].filename for wheels in chosen.values()}) == 3
    with pytest.raises(InvalidSettingError, match="no wheels for this platform"):
        choose_wheels(pylock(package("far", wheel("far", "1.0", "cp311-cp311-win_arm64"))))
    for content in (b"\xff", b"[", b"packages = 1", pylock(package("odd", wheel("odd", "1.0", "odd")))):
        with pytest.raises(InvalidSettingError):
            choose_own_wheels(content)


def _own_platform() -> str:
    from packaging.tags import platform_tags

    return next(iter(platform_tags()))


def test_archives_of_other_platforms_and_for_development_are_left_out() -> None:
    assert len(list_archives(npm_lock({"a": b"1", "@b/c": b"2"}))) == 2
    assert list_archives(npm_lock({"a": b"1"}, dev=True)) == []
    assert list_archives(npm_lock({"a": b"1"}, optional=True, os=["nowhere"])) == []
    assert list_archives(npm_lock({"a": b"1"}, optional=True, os=[f"!{OWN}"])) == []
    assert len(list_archives(npm_lock({"a": b"1"}, optional=True, os=["!nowhere", OWN]))) == 1
    assert len(list_archives(npm_lock({"a": b"1"}, os=["nowhere"]))) == 1  # npm refuses it
    for lock in (b"[", b"{}", npm_lock({"a": b"1"}).replace(b"sha512-", b"sha1-")):
        with pytest.raises(InvalidSettingError):
            list_archives(lock)
    row = orjson.loads(use_archives(npm_lock({"a": b"1"}), "/x"))["packages"]["node_modules/a"]
    assert row["resolved"] == f"file:/x/{hashlib.sha512(b'1').hexdigest()}.tgz"


PURE = "a-1.0-py3-none-any.whl"
PYTHON_LOCK = pylock(package("a", wheel("a", "1.0", "py3-none-any", b"wheel")))
NPM_LOCK = npm_lock({"server": b"archive"})
ARCHIVE = f"vendor/npm/{hashlib.sha512(b'archive').hexdigest()}.tgz"


@pytest.mark.parametrize(
    ("packages", "problem"),
    [
        ({f"vendor/wheels/{PURE}": b"wheel", ARCHIVE: b"archive"}, ""),
        ({f"vendor/wheels/{PURE}": b"other", ARCHIVE: b"archive"}, f"names vendor/wheels/{PURE}"),
        ({"vendor/wheels/b-1.0-py3-none-any.whl": b"wheel", ARCHIVE: b"archive"}, "names vendor/wheels/b"),
        ({f"vendor/wheels/{PURE}": b"wheel", ARCHIVE: b"other"}, "names vendor/npm/"),
        ({f"vendor/wheels/{PURE}": b"wheel", "vendor/npm/x.tgz": b"archive"}, "names vendor/npm/x"),
        ({f"vendor/wheels/{PURE}": b"wheel"}, "no archive of server 1.2.3 for this machine"),
        ({ARCHIVE: b"archive"}, "no archive of a 1.0 for this machine"),
    ],
)
def test_packages_are_those_that_a_lock_names_and_all_of_them(
    packages: Mapping[str, bytes], problem: str
) -> None:
    imports = {"p": {"lock": "p.toml"}, "n": {"lock": "n.json"}}
    lock = TeamLock.model_validate({"schema": 1, "imports": imports})
    rows = [
        TeamFile(path, "npm" if path.endswith(".tgz") else "wheels", content).row
        for path, content in packages.items()
    ]
    files = {"p.toml": PYTHON_LOCK, "n.json": NPM_LOCK, **packages}
    if not problem:
        check_vendored(rows, lock, lambda path: BytesIO(files[path]), where="words")
        return
    with pytest.raises(TeamRefusedError, match=problem):
        check_vendored(rows, lock, lambda path: BytesIO(files[path]), where="words")


def test_a_wheel_may_be_larger_than_a_file_of_an_agent() -> None:
    assert find_list_problem([FileRow("vendor/wheels/a.whl", "wheels", MAX_FILE_BYTES + 1, "")]) == ""
    assert "at most" in find_list_problem([FileRow("a.py", "agents", MAX_FILE_BYTES + 1, "")])
    assert "is over" in find_list_problem([FileRow("vendor/wheels/a.whl", "wheels", 64 << 20, "")])


async def test_up_uses_the_packages_of_the_digest_and_refuses_others_before_it_unpacks(
    teams: TeamCommands, write_team: WriteTeam, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = '[imports.files]\npypi = "a==1.0"\n'
    folder = write_team(more=more)
    (folder / "locks" / "files").mkdir(parents=True)
    (folder / "locks" / "files" / "pylock.toml").write_bytes(PYTHON_LOCK)
    write_team(more=more, imports={"files": {"lock": "locks/files/pylock.toml", "packages": 1}})
    content = b"wheel"
    monkeypatch.setattr(
        packing, "vendor_packages", lambda *_: [TeamFile(f"vendor/wheels/{PURE}", "wheels", content)]
    )
    plain = await teams.pack(folder, registry=None, output=None)
    packed = await teams.pack(folder, registry=None, output=None, vendor=True)
    again = await teams.pack(folder, registry=None, output=None, vendor=True)
    assert packed.team.digest == again.team.digest != plain.team.digest
    assert "packages    1 wheels and 0 archives of npm, 5 bytes" in "\n".join(
        describe_consent(packed.team, "me").render()
    )
    changed = await teams.compare(plain.team.digest, packed.team.digest)
    assert [change.name for change in changed.changes] == ["in the digest", "size"]
    used: list[object] = []

    def make(environments: Environments, *_: object, **__: object) -> None:
        used.append(environments.vendored)
        raise InvalidSettingError("files", "enough", remedy="")

    async def no_hub(*_: object, **__: object) -> str:
        raise StateError("no hub in this test")

    monkeypatch.setattr(commands, "ensure_hub", no_hub)
    monkeypatch.setattr(Environments, "make_python", make)
    for digest in (plain.team.digest, packed.team.digest):
        with pytest.raises(InvalidSettingError, match="enough"):
            await teams.up(digest, UpOptions(is_agreed=True), lambda _: False, print)
    store = TeamStore(state)
    assert used == [None, store.folder_of("words", packed.team.digest) / "files"]
    content = b"other"
    false = await teams.pack(folder, registry=None, output=None, vendor=True)
    with pytest.raises(TeamRefusedError, match="no lock of the team names"):
        await teams.up(false.team.digest, UpOptions(is_agreed=True), lambda _: False, print)
    assert not store.has("words", false.team.digest)

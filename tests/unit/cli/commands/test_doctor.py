from __future__ import annotations

import json

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.commands import doctor as doctor_module
from tidemill.client.network.errors import BrokerUnreachable, RequestTimedOut


@pytest.fixture
def healthy(monkeypatch):
    """A machine on which every check passes; the port is free."""

    async def refused(*args: object, **options: object) -> None:
        raise BrokerUnreachable("refused")

    monkeypatch.setattr(doctor_module.BrokerConnection, "open", refused)
    monkeypatch.setattr(doctor_module, "is_compiled", lambda module: True)
    monkeypatch.setattr(doctor_module, "_try_java_version", lambda path: 21)
    monkeypatch.setattr(doctor_module.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(doctor_module.resource, "getrlimit", lambda which: (65_536, 65_536))


def findings(*args: str) -> tuple[dict[str, dict[str, str]], int]:
    result = tidemill("doctor", "--json", *args)
    return {found["name"]: found for found in json.loads(result.stdout)}, result.exit_code


@pytest.mark.usefixtures("healthy")
def test_a_healthy_machine_needs_no_advice(tmp_path):
    found, exit_code = findings("--data-dir", str(tmp_path / "not" / "yet"))

    assert exit_code == 0
    assert {name: f["advice"] for name, f in found.items() if f["advice"]} == {}


@pytest.mark.usefixtures("healthy")
def test_the_table_lists_every_check(tmp_path):
    result = tidemill("doctor", "--data-dir", str(tmp_path))

    names = [line.split("  ")[0] for line in result.stdout.splitlines()[1:]]
    assert names[:3] == ["python", "compiler", "compiled loops"]
    assert names[3:5] == ["compiled request path", "open files"]


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("check", ["compiled loops", "compiled request path"])
def test_modules_that_are_not_compiled_are_a_note_and_no_failure(monkeypatch, check):
    monkeypatch.setattr(doctor_module, "is_compiled", lambda module: False)

    found, exit_code = findings()

    assert found[check]["status"] == "note"
    assert "make setup" in found[check]["advice"]
    assert exit_code == 0


@pytest.mark.usefixtures("healthy")
def test_missing_programs_are_named_with_their_packages(monkeypatch):
    monkeypatch.setattr(doctor_module.shutil, "which", lambda name: None)

    found, exit_code = findings()

    for name in ("compiler", "java", "kcat"):
        assert found[name]["status"] == "note"
        assert "apt install" in found[name]["advice"]
    assert exit_code == 0


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("version", [8, None], ids=["too old", "does not run"])
def test_an_unusable_java_is_a_note(monkeypatch, version):
    monkeypatch.setattr(doctor_module, "_try_java_version", lambda path: version)

    assert findings()[0]["java"]["status"] == "note"


@pytest.mark.usefixtures("healthy")
def test_too_few_open_files_are_a_problem(monkeypatch):
    monkeypatch.setattr(doctor_module.resource, "getrlimit", lambda which: (256, 524_288))

    found, exit_code = findings()

    assert found["open files"]["advice"].endswith("run `ulimit -n 65536` first")
    assert exit_code == 1


@pytest.mark.usefixtures("healthy")
def test_a_full_disk_is_a_problem(monkeypatch):
    usage = doctor_module.shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda path: usage)

    found, exit_code = findings()

    assert found["disk"]["status"] == "problem"
    assert exit_code == 1


@pytest.mark.usefixtures("healthy")
def test_a_port_that_something_else_holds_is_a_problem(monkeypatch):
    async def silent(*args: object, **options: object) -> None:
        raise RequestTimedOut("no greeting")

    monkeypatch.setattr(doctor_module.BrokerConnection, "open", silent)

    found, exit_code = findings()

    assert "--listen" in found["port"]["advice"]
    assert exit_code == 1

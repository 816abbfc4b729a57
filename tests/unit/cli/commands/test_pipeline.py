from __future__ import annotations

import json
import shutil
import subprocess
import sys

from tests.unit.cli.invoke import tidemill
from tidemill.cli.demo.shop_day import DemoLog, intensity
from tidemill.core.rng import SeededRng


def test_list_names_every_pipeline():
    listed = json.loads(tidemill("pipeline", "list", "--json").stdout)

    assert [row["name"] for row in listed] == ["logs", "enrich", "table"]
    assert tidemill("pipeline", "list").stdout.splitlines()[1].startswith("logs ")


def test_describe_explains_every_key():
    facts = json.loads(tidemill("pipeline", "describe", "logs", "--json").stdout)

    keys = {row["key"]: row for row in facts["keys"]}
    assert keys["input.format"]["allowed"] == "one of auto, combined, json"
    assert all(row["doc"] for row in facts["keys"])
    assert "checkpoint.dir" in tidemill("pipeline", "describe", "logs").stdout


def test_init_writes_a_file_that_run_accepts_and_never_overwrites_one(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)

    wrote = tidemill("pipeline", "init", "logs", str(tmp_path / "new"))
    again = tidemill("pipeline", "init", "logs", str(tmp_path / "new"))
    ran = tidemill("pipeline", "run", str(tmp_path / "new/logs.toml"))

    assert wrote.exit_code == 0
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert ran.stderr.startswith("error: Java is missing")
    assert ran.exit_code == 1


def test_wrong_settings_are_refused_before_anything_starts(tmp_path):
    (tmp_path / "a.toml").write_text('pipeline = "logs"\nwindow.z = 1\n')
    (tmp_path / "b.toml").write_text("window.s = 1\n")

    typo = tidemill("pipeline", "run", str(tmp_path / "a.toml"))
    nameless = tidemill("pipeline", "run", str(tmp_path / "b.toml"))
    gone = tidemill("pipeline", "run", "logs", "--config", str(tmp_path / "c.toml"))
    flag = tidemill("pipeline", "run", "logs", "--set", "window.s=0")
    unknown = tidemill("pipeline", "run", "logz")

    assert "did you mean window.s?" in typo.stderr
    assert 'pipeline = "logs"' in nameless.stderr
    assert "No such file" in gone.stderr
    assert "expected a whole number from 1" in flag.stderr
    assert "did you mean logs?" in unknown.stderr
    results = (typo, nameless, gone, flag, unknown)
    assert {result.exit_code for result in results} == {2}
    assert {result.stderr.count("\n") for result in results} == {1}


def test_a_report_without_windows_says_so(tmp_path):
    result = tidemill("pipeline", "report", "logs", "--set", f"output.dir={tmp_path}")

    assert (result.exit_code, result.stderr) == (1, "error: logs has no results yet\n")


def test_listing_pipelines_does_not_load_spark():
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tidemill.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['pipeline', 'describe', 'logs']).exit_code == 0\n"
        "print(sorted({'pyspark', 'pyarrow', 'rich'} & set(sys.modules)))\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"


def test_the_demo_log_is_mostly_good_has_both_formats_and_an_outage():
    log = DemoLog(SeededRng(3))
    calm = [log.line(1_700_000_000_000 + n, 0.1) for n in range(4_000)]
    outage = [log.line(1_700_000_000_000 + n, 0.65) for n in range(4_000)]

    assert 0 < sum(line.broken for line in calm) < 40
    assert 300 < sum(line.value.startswith(b'{"time"') for line in calm) < 700
    assert sum(b'" 503 ' in line.value for line in calm) == 0
    assert sum(b'" 503 ' in line.value for line in outage) > 400
    assert log.line(0, 0.5) != log.line(0, 0.5)


def test_the_shop_is_busiest_in_the_rush():
    assert intensity(0.35) > intensity(0.5) > intensity(0.05) > 0

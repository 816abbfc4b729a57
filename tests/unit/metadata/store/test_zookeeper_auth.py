"""The file with a broker's credentials for ZooKeeper."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tidemill.core.errors import UserError
from tidemill.metadata.store.zookeeper_auth import read_auth


def test_without_a_file_nobody_is_asked():
    assert not read_auth("").is_given


@pytest.mark.parametrize("line", ["digest a:b:c\n", "digest  a:b:c"])
def test_a_digest_is_a_user_and_a_password(tmp_path, line):
    (tmp_path / "auth").write_text(line)
    auth = read_auth(str(tmp_path / "auth"))
    assert (auth.digests, auth.sasl_options) == ([("digest", "a:b:c")], None)
    assert "a:b" not in repr(auth)


def test_sasl_names_its_mechanism(tmp_path, monkeypatch):
    (tmp_path / "auth").write_text("sasl a:b\n")
    monkeypatch.setitem(sys.modules, "puresasl", ModuleType("puresasl"))
    assert read_auth(str(tmp_path / "auth")).sasl_options == {
        "mechanism": "DIGEST-MD5",
        "username": "a",
        "password": "b",
    }


@pytest.mark.parametrize("text", ["", "a:b", "plain a:b", "digest ab", "digest a:b\ndigest c:d"])
def test_anything_else_is_refused_without_showing_it(tmp_path, text):
    (tmp_path / "auth").write_text(text)
    with pytest.raises(UserError, match="expected one line") as refused:
        read_auth(str(tmp_path / "auth"))
    assert "a:b" not in str(refused.value)


def test_sasl_without_its_package_says_which_one(tmp_path, monkeypatch):
    (tmp_path / "auth").write_text("sasl a:b\n")
    monkeypatch.setitem(sys.modules, "puresasl", None)
    with pytest.raises(UserError, match="pip install pure-sasl"):
        read_auth(str(tmp_path / "auth"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="gone"):
        read_auth(str(tmp_path / "gone"))

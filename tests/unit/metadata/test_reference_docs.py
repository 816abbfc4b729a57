from __future__ import annotations

from tools import reference_docs


def test_the_reference_pages_match_the_code():
    assert reference_docs.main(["--check"]) == 0


def test_a_page_that_differs_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference_docs, "FOLDER", tmp_path)
    assert reference_docs.main([]) == 0
    assert reference_docs.main(["--check"]) == 0
    (tmp_path / "topic-keys.md").write_text("something else")
    assert reference_docs.main(["--check"]) == 1
    assert "docs/reference/topic-keys.md is out of date" in capsys.readouterr().out

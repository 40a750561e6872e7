"""The secrets that an instance makes for itself."""

import stat

import pytest

from config import secrets


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("VAR_DIR", str(tmp_path / "var"))
    monkeypatch.delenv("SECRET_KEY", raising=False)
    monkeypatch.delenv("VAULT_KEYS", raising=False)
    return tmp_path / "var" / "secrets.env"


def read(file):
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def test_both_are_made_once_and_for_their_user_alone(file):
    secrets.provide()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = read(file)
    assert len(made["SECRET_KEY"]) >= 50
    assert list(secrets.read_vault_keys(made["VAULT_KEYS"].split(","))) == ["first"]
    secrets.provide()
    assert read(file) == made


def test_what_the_environment_names_is_not_made(file, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "named")
    monkeypatch.setenv("VAULT_KEYS", secrets.make_vault_key("named"))
    secrets.provide()
    assert not file.exists()


def test_what_is_missing_is_added_to_what_is_there(file, monkeypatch):
    monkeypatch.setenv("VAULT_KEYS", secrets.make_vault_key("named"))
    secrets.provide()
    first = read(file)
    monkeypatch.delenv("VAULT_KEYS")
    secrets.provide()
    assert list(first) == ["SECRET_KEY"]
    assert list(read(file)) == ["SECRET_KEY", "VAULT_KEYS"]
    assert read(file)["SECRET_KEY"] == first["SECRET_KEY"]


def test_vault_keys_keep_their_order():
    pairs = [secrets.make_vault_key(name) for name in ("new", "old", "older")]
    keys = secrets.read_vault_keys(pairs)
    assert list(keys) == ["new", "old", "older"]
    assert {len(key) for key in keys.values()} == {32}
    assert len(set(keys.values())) == 3


@pytest.mark.parametrize(
    "pair", ["", "first", "first:", ":" + "A" * 43 + "=", "first:" + "A" * 42, "a b:" + "A" * 43 + "=", "first:!!!!"]
)
def test_a_wrong_vault_key_is_named_by_its_place_and_not_shown(pair):
    with pytest.raises(secrets.BadVaultKeys, match="entry 2") as caught:
        secrets.read_vault_keys([secrets.make_vault_key("good"), pair])
    assert "AAAA" not in str(caught.value)


def test_a_vault_key_may_not_be_listed_twice():
    with pytest.raises(secrets.BadVaultKeys, match=r"entry 2 .* repeats"):
        secrets.read_vault_keys([secrets.make_vault_key("same"), secrets.make_vault_key("same")])

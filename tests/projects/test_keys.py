"""API keys: made once, told apart when they open nothing, never in the log."""

import logging
import zlib
from datetime import timedelta

import pytest
from django.utils import timezone

from projects import keys
from projects.models import ApiKey, Project, Refusal
from projects.scopes import FOR_PROGRAMS, Scope

pytestmark = pytest.mark.django_db


@pytest.fixture
def project():
    return Project.objects.create(name="harbour")


def refusal(secret):
    with pytest.raises(keys.Refused) as caught:
        keys.authenticate(secret)
    assert secret == "" or secret not in str(caught.value)
    return caught.value.reason


def test_a_secret_has_its_mark_and_a_checksum(project):
    _, secret = keys.make(project, "agent")
    mark, random, checksum = secret[:4], secret[4:44], secret[44:]
    assert mark == "mrg_"
    assert (random + checksum).isalnum() and (random + checksum).isascii()
    number = 0
    for letter in checksum:
        number = number * 62 + keys.ALPHABET.index(letter)
    assert len(secret) == 50
    assert number == zlib.crc32(random.encode())


def test_a_key_is_found_by_its_secret_with_its_project(project, django_assert_num_queries):
    made, secret = keys.make(project, "agent", [Scope.EXECUTE])
    keys.authenticate(secret)
    with django_assert_num_queries(1):
        key = keys.authenticate(secret)
        assert key.project.name == "harbour"
    assert key == made
    assert key.allows(Scope.EXECUTE)
    assert not key.allows(Scope.READ_SNAPSHOTS)


def test_a_key_may_do_all_but_administer_unless_told_otherwise(project):
    key, _ = keys.make(project, "agent")
    assert {scope for scope in Scope if key.allows(scope)} == set(FOR_PROGRAMS) == set(Scope) - {Scope.ADMIN}


def test_only_hash_and_prefix_are_stored(project):
    _, secret = keys.make(project, "agent")
    row = ApiKey.objects.values().get()
    assert row["prefix"] == secret[:8]
    assert secret not in str(row)
    assert secret[8:] not in str(row)


@pytest.mark.parametrize("place", [4, 20, 43, 44, 49])
def test_a_mistyped_secret_is_malformed_and_asks_no_database(project, django_assert_num_queries, place):
    _, secret = keys.make(project, "agent")
    other = "a" if secret[place] != "a" else "b"
    with django_assert_num_queries(0):
        assert refusal(secret[:place] + other + secret[place + 1 :]) is Refusal.MALFORMED


@pytest.mark.parametrize("secret", ["", "mrg_", "hunter2", "mrg_" + "é" * 46, "x" * 50, "mrg_" + "0" * 47])
def test_what_is_no_secret_is_malformed(secret):
    assert refusal(secret) is Refusal.MALFORMED


def test_a_well_formed_secret_that_nobody_made_is_unknown(project):
    key, secret = keys.make(project, "agent")
    key.delete()
    assert refusal(secret) is Refusal.UNKNOWN


def test_a_revoked_key_is_refused_and_stays_revoked_as_of_the_first_time(project):
    key, secret = keys.make(project, "agent")
    key.revoke()
    assert refusal(secret) is Refusal.REVOKED
    first = ApiKey.objects.get().revoked
    ApiKey.objects.get().revoke()
    assert ApiKey.objects.get().revoked == first


def test_a_key_is_refused_from_the_moment_it_expires(project):
    now = timezone.now()
    key, secret = keys.make(project, "agent", expires=now + timedelta(hours=1))
    assert keys.authenticate(secret) == key
    assert key.refusal(now + timedelta(minutes=59)) is None
    assert key.refusal(now + timedelta(hours=1)) is Refusal.EXPIRED
    ApiKey.objects.update(expires=now - timedelta(seconds=1))
    assert refusal(secret) is Refusal.EXPIRED


def test_the_keys_of_a_disabled_project_are_refused(project):
    _, secret = keys.make(project, "agent")
    project.disabled = True
    project.save()
    assert refusal(secret) is Refusal.PROJECT_DISABLED


def test_usable_agrees_with_refusal(project):
    closed = Project.objects.create(name="closed", disabled=True)
    now = timezone.now()
    good, _ = keys.make(project, "good", expires=now + timedelta(days=1))
    keys.make(project, "expired", expires=now)
    keys.make(closed, "disabled")
    keys.make(project, "revoked")[0].revoke()
    assert list(ApiKey.objects.usable(now)) == [good]
    assert [key for key in ApiKey.objects.all() if key.refusal(now) is None] == [good]


def test_use_is_written_at_most_once_a_minute(project, django_assert_num_queries):
    key, secret = keys.make(project, "agent")
    keys.authenticate(secret)
    first = ApiKey.objects.get().last_used
    assert first is not None
    with django_assert_num_queries(1):  # the look-up alone
        keys.authenticate(secret)
    assert ApiKey.objects.get().last_used == first
    ApiKey.objects.update(last_used=first - timedelta(seconds=61))
    keys.authenticate(secret)
    assert ApiKey.objects.get().last_used >= first
    key.refresh_from_db()
    stale = ApiKey.objects.get()
    stale.last_used = None  # as read before another server wrote
    stale.note_use(key.last_used + timedelta(seconds=30))
    assert ApiKey.objects.get().last_used == key.last_used


def test_the_log_names_the_prefix_and_never_the_secret(project, caplog):
    caplog.set_level(logging.DEBUG)
    key, secret = keys.make(project, "agent")
    keys.authenticate(secret)
    key.revoke()
    typo = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    refusal(secret)
    refusal(typo)
    refusal("another service's password")
    assert f"refused: revoked, prefix '{key.prefix}'" in caplog.text
    assert f"refused: malformed, prefix '{key.prefix}'" in caplog.text
    assert secret[8:44] not in caplog.text
    assert "another" not in caplog.text

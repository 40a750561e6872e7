"""The commands that make projects and keys, and revoke keys."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from projects import keys
from projects.models import ApiKey, Project
from projects.scopes import FOR_PROGRAMS, Scope

pytestmark = pytest.mark.django_db


def run(*arguments):
    out, err = StringIO(), StringIO()
    call_command(*arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


@pytest.fixture
def project():
    return Project.objects.create(name="harbour")


def test_createproject():
    run("createproject", "harbour")
    assert Project.objects.get().quota == 2**30


def test_createproject_with_a_quota():
    run("createproject", "harbour", "--quota", "1000")
    assert Project.objects.get().quota == 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("harbour",), "already exists"),
        (("Har Bour",), "lower-case letters"),
        (("new", "--quota", "-1"), "greater than or equal to 0"),
    ],
)
def test_createproject_says_what_is_wrong(project, arguments, words):
    with pytest.raises(CommandError, match=words):
        run("createproject", *arguments)
    assert Project.objects.count() == 1


def test_createkey_prints_the_secret_alone(project):
    out, err = run("createkey", "harbour", "agent")
    key = keys.authenticate(out.removesuffix("\n"))
    assert (key.name, key.project, key.expires) == ("agent", project, None)
    assert key.scopes == list(FOR_PROGRAMS)
    assert key.prefix in err
    assert out.strip() not in err


def test_createkey_with_scopes_and_days(project):
    run("createkey", "harbour", "agent", "--scope", Scope.EXECUTE, "--scope", Scope.ADMIN, "--days", "2")
    key = ApiKey.objects.get()
    assert key.scopes == [Scope.EXECUTE, Scope.ADMIN]
    assert abs(key.expires - timezone.now() - timedelta(days=2)) < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "agent"), "no project 'nowhere'"),
        (("harbour", "agent", "--scope", "everything"), "invalid .* 'everything'"),
    ],
)
def test_createkey_says_what_is_wrong(project, arguments, words):
    with pytest.raises(CommandError, match=words):
        run("createkey", *arguments)
    assert not ApiKey.objects.exists()


def test_revokekey(project):
    key, _ = keys.make(project, "agent")
    other, _ = keys.make(project, "other")
    run("revokekey", key.prefix)
    key.refresh_from_db()
    other.refresh_from_db()
    assert key.revoked is not None
    assert other.revoked is None
    with pytest.raises(CommandError, match="is revoked already"):
        run("revokekey", key.prefix)


def test_revokekey_knows_no_such_key(project):
    with pytest.raises(CommandError, match="does not exist"):
        run("revokekey", "mrg_none")


def test_revokekey_asks_which_one_when_several_have_the_prefix(project):
    keys.make(project, "agent")
    keys.make(Project.objects.create(name="quay"), "agent")
    ApiKey.objects.update(prefix="mrg_same")
    with pytest.raises(CommandError, match="'agent' of project harbour; 'agent' of project quay"):
        run("revokekey", "mrg_same")
    run("revokekey", "mrg_same", "--project", "quay", "--name", "agent")
    assert ApiKey.objects.get(project__name="quay").revoked is not None
    assert ApiKey.objects.get(project__name="harbour").revoked is None

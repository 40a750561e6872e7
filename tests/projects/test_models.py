"""The rules of projects and memberships."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from projects.models import Membership, Project, Role

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("by_instance", "by_project", "quota"), [(100, None, 100), (100, 40, 40), (100, 400, 100), (100, 0, 0)]
)
def test_the_quota_is_the_lower_of_both(by_instance, by_project, quota):
    assert Project(snapshot_quota=by_instance, lower_quota=by_project).quota == quota


def test_the_defaults():
    project = Project.objects.create(name="harbour")
    assert project.quota == 1_073_741_824
    assert project.memory_limit == 268_435_456
    assert (project.feed_seconds, project.turn_seconds, project.sleep_seconds) == (60, 60, 300)
    assert (project.recursion_limit, project.suspensions_limit, project.max_sessions) == (1_000, 10_000, 200)


@pytest.mark.parametrize("name", ["", "Harbour", "har bour", "-harbour", "harbour-", "a" * 64, "harbour\n"])
def test_names_that_are_refused(name):
    with pytest.raises(ValidationError):
        Project(name=name).full_clean()


@pytest.mark.parametrize("name", ["a", "harbour", "2-harbours", "a" * 63])
def test_names_that_are_taken(name):
    Project(name=name).full_clean()


def test_a_person_has_one_role_in_a_project():
    project, user = Project.objects.create(name="harbour"), User.objects.create(username="ann")
    Membership.objects.create(project=project, user=user, role=Role.OWNER)
    with pytest.raises(IntegrityError), transaction.atomic():
        Membership.objects.create(project=project, user=user, role=Role.VIEWER)

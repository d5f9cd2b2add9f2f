"""An emptied database is a working one."""

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command

from dashboard.core import audit


@pytest.mark.django_db(transaction=True)
def test_after_a_flush_the_roles_and_the_start_of_the_chain_are_there() -> None:
    call_command("flush", interactive=False, verbosity=0)
    assert set(Group.objects.values_list("name", flat=True)) == {"viewer", "operator", "admin"}
    assert audit.head() == (0, "")

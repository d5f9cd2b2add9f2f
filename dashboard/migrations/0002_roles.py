"""The three roles, as groups, and the start of the audit's chain."""

from django.db import migrations


def make(apps, schema_editor):
    Group = apps.get_model("auth", "Group")
    for name in ("viewer", "operator", "admin"):
        Group.objects.get_or_create(name=name)
    apps.get_model("dashboard", "AuditHead").objects.get_or_create(pk=1)


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0001_initial"), ("auth", "0012_alter_user_first_name_max_length")]
    operations = [migrations.RunPython(make, migrations.RunPython.noop)]

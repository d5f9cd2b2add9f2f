"""The index that the audit is searched by."""

from django.db import migrations

from dashboard.audit import search as audit_search


class Migration(migrations.Migration):
    dependencies = [("dashboard", "0006_team_rules")]
    operations = [migrations.RunPython(audit_search.make, audit_search.unmake)]

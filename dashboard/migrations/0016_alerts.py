import django.db.models.deletion
from django.db import migrations, models


RULES = (
    # name, figure, value, for how long, level
    ("critical-conditions", "condition", 1.0, 0.0, "critical"),
    ("old-messages", "queue.oldest", 600.0, 60.0, "warning"),
    ("poison-messages", "queue.poison", 0.0, 0.0, "warning"),
    ("not-passed", "release.waiting", 0.0, 120.0, "warning"),
)


def ship(apps, schema_editor):
    """The rules to start with; they send nothing until they have a channel."""
    rules = apps.get_model("dashboard", "AlertRule").objects.using(schema_editor.connection.alias)
    for name, figure, value, seconds, level in RULES:
        rules.create(
            name=name, figure=figure, value=value, for_seconds=seconds, level=level, by="Kennel", at=0.0
        )


class Migration(migrations.Migration):

    dependencies = [
        ('dashboard', '0015_history_band'),
    ]

    operations = [
        migrations.CreateModel(
            name='AlertChannel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=48, unique=True)),
                ('kind', models.CharField(max_length=10)),
                ('address', models.TextField()),
                ('secret', models.TextField(blank=True)),
                ('shown', models.CharField(max_length=200)),
                ('by', models.CharField(max_length=150)),
                ('at', models.FloatField()),
            ],
        ),
        migrations.CreateModel(
            name='AlertRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=48, unique=True)),
                ('figure', models.CharField(max_length=40)),
                ('below', models.BooleanField(default=False)),
                ('value', models.FloatField(default=0.0)),
                ('for_seconds', models.FloatField(default=0.0)),
                ('clear_seconds', models.FloatField(default=60.0)),
                ('names', models.CharField(default='*', max_length=200)),
                ('level', models.CharField(default='warning', max_length=8)),
                ('enabled', models.BooleanField(default=True)),
                ('by', models.CharField(max_length=150)),
                ('at', models.FloatField()),
                ('channels', models.ManyToManyField(blank=True, related_name='rules', to='dashboard.alertchannel')),
            ],
        ),
        migrations.CreateModel(
            name='Alert',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_name', models.CharField(max_length=48)),
                ('subject', models.CharField(blank=True, max_length=200)),
                ('what', models.TextField()),
                ('level', models.CharField(max_length=8)),
                ('url', models.CharField(blank=True, max_length=300)),
                ('since', models.FloatField()),
                ('seen_at', models.FloatField()),
                ('fired_at', models.FloatField(null=True)),
                ('clear_since', models.FloatField(null=True)),
                ('resolved_at', models.FloatField(db_index=True, null=True)),
                ('acknowledged_by', models.CharField(blank=True, max_length=150)),
                ('acknowledged_at', models.FloatField(null=True)),
                ('notified', models.BooleanField(default=False)),
                ('rule', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='alerts', to='dashboard.alertrule')),
            ],
        ),
        migrations.CreateModel(
            name='AlertSilence',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('names', models.CharField(default='*', max_length=200)),
                ('until', models.FloatField(db_index=True)),
                ('by', models.CharField(max_length=150)),
                ('reason', models.TextField(blank=True)),
                ('rule', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='silences', to='dashboard.alertrule')),
            ],
        ),
        migrations.CreateModel(
            name='AlertDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=80, unique=True)),
                ('event', models.CharField(max_length=8)),
                ('state', models.CharField(default='waiting', max_length=8)),
                ('tries', models.PositiveSmallIntegerField(default=0)),
                ('next_at', models.FloatField(default=0.0)),
                ('claimed_until', models.FloatField(default=0.0)),
                ('problem', models.CharField(blank=True, max_length=200)),
                ('at', models.FloatField()),
                ('alert', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='dashboard.alert')),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='dashboard.alertchannel')),
            ],
            options={
                'indexes': [models.Index(fields=['state', 'next_at'], name='alert_delivery_due')],
            },
        ),
        migrations.AddConstraint(
            model_name='alert',
            constraint=models.UniqueConstraint(condition=models.Q(('resolved_at', None)), fields=('rule', 'subject'), name='alert_open_once'),
        ),
        migrations.RunPython(ship, migrations.RunPython.noop),
    ]

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('dashboard', '0017_poison_messages'),
    ]

    operations = [
        migrations.CreateModel(
            name='Tally',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('source', models.CharField(max_length=300)),
                ('queue', models.CharField(max_length=200)),
                ('handler', models.CharField(blank=True, max_length=200)),
                ('seconds', models.PositiveSmallIntegerField()),
                ('start', models.BigIntegerField()),
                ('done', models.BigIntegerField(default=0)),
                ('failed', models.BigIntegerField(default=0)),
                ('retried', models.BigIntegerField(default=0)),
                ('durations', models.TextField(default='{}')),
                ('waits', models.TextField(default='{}')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('source', 'seconds', 'start', 'queue', 'handler'), name='tally_once')],
            },
        ),
        migrations.CreateModel(
            name='TallyMark',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('source', models.CharField(max_length=300)),
                ('instance', models.CharField(max_length=200)),
                ('queue', models.CharField(max_length=200)),
                ('handler', models.CharField(blank=True, max_length=200)),
                ('counted', models.TextField()),
                ('at', models.FloatField(db_index=True)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('source', 'instance', 'queue', 'handler'), name='tally_mark_once')],
            },
        ),
    ]

"""The five lanes and the shards. The number of shards is taken from the settings once, here, and then fixed."""

from typing import Any, ClassVar

from django.db import migrations

from jobs.conf import conf

# id, name, lowest priority, head start and target start in seconds
LANES = [
    (1, "urgent", 75, 600.0, 5.0),
    (2, "high", 25, 300.0, 15.0),
    (3, "normal", -24, 120.0, 60.0),
    (4, "low", -74, 60.0, 300.0),
    (5, "background", -100, 0.0, 1800.0),
]


def fill(apps: Any, schema_editor: Any) -> None:
    lane, shard = apps.get_model("jobs", "Lane"), apps.get_model("jobs", "Shard")
    lane.objects.bulk_create(
        lane(
            id=number,
            name=name,
            priority_floor=floor,
            head_start_seconds=head_start,
            target_start_seconds=target,
        )
        for number, name, floor, head_start, target in LANES
    )
    shard.objects.bulk_create(shard(number=number) for number in range(conf().shards))


class Migration(migrations.Migration):
    """Reversible: the tables go with the initial migration."""

    dependencies: ClassVar = [("jobs", "0003_hot_table_storage")]
    operations: ClassVar = [migrations.RunPython(fill, migrations.RunPython.noop)]

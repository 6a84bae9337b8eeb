"""Refund limits of pools. Work that stopped before this migration keeps the old rule: no limit."""

import django.db.models.deletion
from django.db import migrations, models

OLD_RULE_UNTIL_NOW = """
INSERT INTO telemetry_refundlimit (pool_id, forgiven_minutes, valid_from, created_at)
SELECT id, NULL, '2000-01-01 00:00:00+00', now() FROM scheduler_pool
UNION ALL
SELECT id, 60, now(), now() FROM scheduler_pool;
SET CONSTRAINTS ALL IMMEDIATE;
"""

GUARDS = """
CREATE TRIGGER refund_limits_are_only_added BEFORE UPDATE OR DELETE ON telemetry_refundlimit
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_change();

CREATE FUNCTION telemetry_refuse_refund_limit_in_the_past() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM telemetry_chargeduntil AS charged JOIN scheduler_gpu AS gpu ON gpu.id = charged.gpu_id
               WHERE gpu.pool_id = NEW.pool_id AND charged."until" > NEW.valid_from) THEN
        RAISE EXCEPTION 'valid_from: time after % is already charged, a refund limit begins later', NEW.valid_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refund_limits_begin_after_charged_time BEFORE INSERT ON telemetry_refundlimit
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_refund_limit_in_the_past();
"""


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0030_removed_rows"), ("telemetry", "0001_squashed_0010")]

    operations = [
        migrations.CreateModel(
            name="RefundLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "forgiven_minutes",
                    models.PositiveIntegerField(
                        help_text="empty: no limit, the rule before version 0.2", null=True
                    ),
                ),
                ("valid_from", models.DateTimeField()),
                ("created_at", models.DateTimeField()),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="refund_limits",
                        to="scheduler.pool",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("pool", "valid_from"), name="one_refund_limit_per_pool_and_date"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("forgiven_minutes__isnull", True),
                            ("forgiven_minutes__lte", 10080),
                            _connector="OR",
                        ),
                        name="at_most_a_week_is_forgiven",
                    ),
                ],
            },
        ),
        migrations.RunSQL(OLD_RULE_UNTIL_NOW, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS),
    ]

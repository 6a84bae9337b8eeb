"""Copy approved changes of guarantees, with their times, into the table that statements read."""

from django.db import migrations

# The guarantee before the first approval was recorded in the audit log with the request.
APPROVED_CHANGES = """
INSERT INTO scheduler_guaranteechange (team_id, pool_id, model, slots_before, slots_after, at)
SELECT team_id, pool_id, model, slots_before, slots_after, decided_at FROM (
    SELECT team_id, pool_id, model, slots_after, decided_at, COALESCE(
        lag(slots_after) OVER (PARTITION BY team_id, pool_id, model ORDER BY decided_at, id),
        requested_from, 0
    ) AS slots_before
    FROM (
        SELECT request.id, request.team_id, request.pool_id, request.payload ->> 'model' AS model, decided_at,
            (CASE WHEN jsonb_typeof(approval.changed_payload) = 'object'
                  THEN request.payload || approval.changed_payload ELSE request.payload END
                ->> 'guaranteed_gpus')::integer * 840 AS slots_after,
            (SELECT round((event.before ->> 'guaranteed_gpus')::numeric * 840)::integer
             FROM portal_auditevent AS event
             WHERE event.target = 'submission:' || request.public_id AND event.before ? 'guaranteed_gpus'
             ORDER BY event.id LIMIT 1) AS requested_from
        FROM portal_submission AS request
        JOIN portal_approval AS approval ON approval.submission_id = request.id AND approval.approved
        WHERE request.kind = 'quota_change' AND request.state = 'approved' AND request.pool_id IS NOT NULL
    ) AS approved
) AS changed
WHERE slots_before <> slots_after
ORDER BY decided_at;
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0009_expired_submissions"), ("scheduler", "0031_guarantee_changes")]

    operations = [migrations.RunSQL(APPROVED_CHANGES, migrations.RunSQL.noop)]

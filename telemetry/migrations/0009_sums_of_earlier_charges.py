"""Fill statement lines and cells from the charges that exist, and guard those of closed months."""

from django.db import migrations

# Charges of open months, with the columns of their line and cell.
OPEN_MONTHS = """
CREATE TEMPORARY TABLE charges_of_open_months ON COMMIT DROP AS
SELECT s.id AS statement_id, c.pool_id, c.cost_centre, c.team_id, c.project_id, c.workload_type, c.model,
    c.bucket, nullif(date_trunc('month', c.start AT TIME ZONE 'UTC')::date, c.month) AS corrected_month,
    c.user_id, c.workload_id, (c.start AT TIME ZONE 'UTC')::date AS day, max(c.user_name) AS user_name,
    max(c.workload_name) AS workload_name, sum(c.slot_seconds) AS slot_seconds, sum(c.cost) AS cost,
    sum(c.charged) AS charged, sum(e.covered_slot_seconds) AS covered, sum(e.used_slot_seconds) AS used
FROM telemetry_charge c JOIN telemetry_statement s ON s.month = c.month
    LEFT JOIN telemetry_chargeevidence e ON e.charge_id = c.id
WHERE s.state <> 'closed' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12;

INSERT INTO telemetry_statementline (
    statement_id, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket, corrected_month,
    idle_share, shared_out, due, pool_name, team_name, project_name, slot_seconds, cost, charged,
    cost_cents, charged_cents, used_cents, idle_cents)
SELECT statement_id, pool_id, cost_centre, team_id, project_id, workload_type, model, bucket, corrected_month,
    false, false, true, '', '', '', sum(slot_seconds), sum(cost), sum(charged), 0, 0, 0, 0
FROM charges_of_open_months GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9;

INSERT INTO telemetry_chargecell (
    line_id, statement_id, user_id, workload_id, day, user_name, workload_name, slot_seconds, cost, charged,
    covered_slot_seconds, used_slot_seconds, cost_cents, charged_cents, used_cents, idle_cents)
SELECT l.id, l.statement_id, c.user_id, c.workload_id, c.day, c.user_name, c.workload_name, c.slot_seconds,
    c.cost, c.charged, c.covered, c.used, 0, 0, 0, 0
FROM charges_of_open_months c JOIN telemetry_statementline l ON l.statement_id = c.statement_id
    AND l.pool_id = c.pool_id AND l.cost_centre = c.cost_centre AND l.workload_type = c.workload_type
    AND l.model = c.model AND l.bucket = c.bucket AND l.team_id IS NOT DISTINCT FROM c.team_id
    AND l.project_id IS NOT DISTINCT FROM c.project_id
    AND l.corrected_month IS NOT DISTINCT FROM c.corrected_month
ORDER BY 1, 3, 4, 5;
"""

# Version 0.1 grouped the lines of a closed month by name. The groups of charges are matched to these lines by
# the names in the charges. If a pool was renamed since the close, its group goes to the line with a pool name
# that no pool has today, and with the nearest GPU-hours.
CLOSED_MONTHS = """
CREATE TEMPORARY TABLE groups_of_closed_months ON COMMIT DROP AS
SELECT s.id AS statement_id, c.pool_id, p.name AS pool_name, c.cost_centre, c.team_name, c.project_name,
    c.workload_type, c.model, c.bucket, min(c.team_id) AS team_id, max(c.team_id) AS last_team,
    min(c.project_id) AS project_id, max(c.project_id) AS last_project, sum(c.slot_seconds) AS slot_seconds,
    sum(c.cost) AS cost, sum(c.charged) AS charged
FROM telemetry_charge c JOIN telemetry_statement s ON s.month = c.month
    JOIN scheduler_pool p ON p.id = c.pool_id
WHERE s.state = 'closed' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9;

CREATE TEMPORARY TABLE matches_of_closed_months ON COMMIT DROP AS
SELECT g.*, line.id AS line_id FROM groups_of_closed_months g CROSS JOIN LATERAL (
    SELECT l.id FROM telemetry_statementline l
    WHERE l.statement_id = g.statement_id AND l.cost_centre = g.cost_centre AND l.team_name = g.team_name
        AND l.project_name = g.project_name AND l.workload_type = g.workload_type AND l.model = g.model
        AND l.bucket = g.bucket
        AND (l.pool_name = g.pool_name OR l.pool_name NOT IN (SELECT name FROM scheduler_pool))
    ORDER BY l.pool_name = g.pool_name DESC, abs(l.gpu_hours * 3024000 - g.slot_seconds), l.id LIMIT 1) line;

UPDATE telemetry_statementline l SET due = true, pool_id = m.pool_id, team_id = m.team_id,
    project_id = m.project_id, slot_seconds = m.slot_seconds, cost = m.cost, charged = m.charged
FROM (
    SELECT line_id, min(pool_id) AS pool_id,
        CASE WHEN min(team_id) = max(last_team) THEN min(team_id) END AS team_id,
        CASE WHEN min(project_id) = max(last_project) THEN min(project_id) END AS project_id,
        sum(slot_seconds) AS slot_seconds, sum(cost) AS cost, sum(charged) AS charged
    FROM matches_of_closed_months GROUP BY line_id) m
WHERE l.id = m.line_id;

INSERT INTO telemetry_chargecell (
    line_id, statement_id, user_id, workload_id, day, user_name, workload_name, slot_seconds, cost, charged,
    covered_slot_seconds, used_slot_seconds, cost_cents, charged_cents, used_cents, idle_cents)
SELECT m.line_id, m.statement_id, c.user_id, c.workload_id, (c.start AT TIME ZONE 'UTC')::date,
    max(c.user_name), max(c.workload_name), sum(c.slot_seconds), sum(c.cost), sum(c.charged),
    sum(e.covered_slot_seconds), sum(e.used_slot_seconds), 0, 0, 0, 0
FROM matches_of_closed_months m JOIN telemetry_statement s ON s.id = m.statement_id
    JOIN telemetry_charge c ON c.month = s.month AND c.pool_id = m.pool_id AND c.cost_centre = m.cost_centre
    AND c.team_name = m.team_name AND c.project_name = m.project_name AND c.workload_type = m.workload_type
    AND c.model = m.model AND c.bucket = m.bucket
    LEFT JOIN telemetry_chargeevidence e ON e.charge_id = c.id
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 3, 4, 5;

-- Lines without charges are shared idle time. Each gets one cell, on the first day of the month.
UPDATE telemetry_statementline l SET idle_share = true, due = true, cost = l.cost_cents,
    charged = l.charged_cents, slot_seconds = round(l.gpu_hours * 3024000),
    pool_id = (SELECT id FROM scheduler_pool WHERE name = l.pool_name),
    team_id = (SELECT id FROM scheduler_team WHERE name = l.team_name)
WHERE NOT l.due AND l.statement_id IN (SELECT id FROM telemetry_statement WHERE state = 'closed');
INSERT INTO telemetry_chargecell (
    line_id, statement_id, day, user_name, workload_name, slot_seconds, cost, charged,
    cost_cents, charged_cents, used_cents, idle_cents)
SELECT l.id, l.statement_id, s.month, '', '', l.slot_seconds, l.cost, l.charged, 0, 0, 0, 0
FROM telemetry_statementline l JOIN telemetry_statement s ON s.id = l.statement_id
WHERE s.state = 'closed' AND l.idle_share;
"""

# Largest remainder: each amount is rounded down, and the missing cents go to the largest remainders. A total
# is rounded half to even. The lines of closed months keep their cents.
LINE_CENTS = """
WITH totals AS (
    SELECT l.statement_id, sum(cost) * 100 AS cost, sum(charged) * 100 AS charged,
        sum(floor(cost * 100)) AS cost_floors, sum(floor(charged * 100)) AS charged_floors
    FROM telemetry_statementline l JOIN telemetry_statement s ON s.id = l.statement_id
    WHERE s.state <> 'closed' GROUP BY 1),
raised AS (
    SELECT statement_id,
        CASE WHEN cost - floor(cost) = 0.5 THEN 2 * round(cost / 2) ELSE round(cost) END - cost_floors
            AS cost_raised,
        CASE WHEN charged - floor(charged) = 0.5 THEN 2 * round(charged / 2) ELSE round(charged) END
            - charged_floors AS charged_raised
    FROM totals),
ranked AS (
    SELECT l.id, floor(l.cost * 100) AS cost_floor, floor(l.charged * 100) AS charged_floor,
        r.cost_raised, r.charged_raised,
        row_number() OVER (PARTITION BY l.statement_id
            ORDER BY l.cost * 100 - floor(l.cost * 100) DESC, l.id) AS cost_rank,
        row_number() OVER (PARTITION BY l.statement_id
            ORDER BY l.charged * 100 - floor(l.charged * 100) DESC, l.id) AS charged_rank
    FROM telemetry_statementline l JOIN raised r ON r.statement_id = l.statement_id)
UPDATE telemetry_statementline l
SET cost_cents = (r.cost_floor + (r.cost_rank <= r.cost_raised)::int) / 100,
    charged_cents = (r.charged_floor + (r.charged_rank <= r.charged_raised)::int) / 100
FROM ranked r WHERE l.id = r.id;
"""

CELL_CENTS = """
WITH ranked AS (
    SELECT c.id, l.bucket, floor(c.cost * 100) AS cost_floor, floor(c.charged * 100) AS charged_floor,
        l.cost_cents * 100 - sum(floor(c.cost * 100)) OVER of_line AS cost_raised,
        l.charged_cents * 100 - sum(floor(c.charged * 100)) OVER of_line AS charged_raised,
        row_number() OVER (PARTITION BY c.line_id
            ORDER BY c.cost * 100 - floor(c.cost * 100) DESC, c.id) AS cost_rank,
        row_number() OVER (PARTITION BY c.line_id
            ORDER BY c.charged * 100 - floor(c.charged * 100) DESC, c.id) AS charged_rank,
        least(greatest(coalesce(c.covered_slot_seconds / nullif(c.slot_seconds, 0), 0), 0), 1) AS covered,
        least(greatest(coalesce(c.used_slot_seconds / nullif(c.slot_seconds, 0), 0), 0), 1) AS used
    FROM telemetry_chargecell c JOIN telemetry_statementline l ON l.id = c.line_id
    WINDOW of_line AS (PARTITION BY c.line_id)),
assigned AS (
    SELECT id, (cost_floor + (cost_rank <= cost_raised)::int) / 100 AS cost_cents,
        (charged_floor + (charged_rank <= charged_raised)::int) / 100 AS charged_cents,
        CASE WHEN bucket = 'used' THEN covered::numeric ELSE 0 END AS covered,
        CASE WHEN bucket = 'used' THEN least(used, covered)::numeric ELSE 0 END AS used
    FROM ranked)
UPDATE telemetry_chargecell c
SET cost_cents = a.cost_cents, charged_cents = a.charged_cents,
    used_cents = round(a.charged_cents * a.used, 2),
    idle_cents = round(a.charged_cents * a.covered, 2) - round(a.charged_cents * a.used, 2)
FROM assigned a WHERE c.id = a.id;

-- The lines of open months stay due, so that the next charging run also shares their idle time.
UPDATE telemetry_statementline l
SET due = s.state <> 'closed', used_cents = c.used_cents, idle_cents = c.idle_cents,
    covered_slot_seconds = c.covered, used_slot_seconds = c.used
FROM (
    SELECT line_id, sum(used_cents) AS used_cents, sum(idle_cents) AS idle_cents,
        sum(covered_slot_seconds) AS covered, sum(used_slot_seconds) AS used
    FROM telemetry_chargecell GROUP BY line_id) c, telemetry_statement s
WHERE l.id = c.line_id AND s.id = l.statement_id;
"""

GUARDS = """
SET CONSTRAINTS ALL IMMEDIATE;
CREATE OR REPLACE FUNCTION telemetry_refuse_line_of_closed_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND (SELECT state FROM telemetry_statement WHERE id = OLD.statement_id) = 'closed' THEN
        RAISE EXCEPTION 'statement %: it is closed, nothing changes its lines', OLD.statement_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    IF (SELECT state FROM telemetry_statement WHERE id = NEW.statement_id) = 'closed' THEN
        RAISE EXCEPTION 'statement %: it is closed, nothing adds to its lines', NEW.statement_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lines_of_closed_statements_stay BEFORE INSERT OR UPDATE OR DELETE ON telemetry_statementline
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_line_of_closed_statement();
CREATE TRIGGER cells_of_closed_statements_stay BEFORE INSERT OR UPDATE OR DELETE ON telemetry_chargecell
    FOR EACH ROW EXECUTE FUNCTION telemetry_refuse_line_of_closed_statement();
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0008_statement_lines_and_cells")]

    operations = [
        # Charges that were inserted by version 0.1 always have a statement.
        migrations.RunSQL(OPEN_MONTHS),
        migrations.RunSQL(CLOSED_MONTHS),
        migrations.RunSQL(LINE_CENTS),
        migrations.RunSQL(CELL_CENTS),
        migrations.RunSQL(GUARDS),
    ]

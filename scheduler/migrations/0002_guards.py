"""What PostgreSQL itself refuses, whichever program writes: see docs/architecture.md, invariants 1 and "Reservations and holds"."""

from django.db import migrations

# Numbers that grow with every claim; the engine takes them while it holds the leader row, so their order is the commits' order.
GENERATION = "CREATE SEQUENCE scheduler_generation"

ALLOCATIONS_ARE_HISTORY = """
CREATE FUNCTION scheduler_allocations_are_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'allocation % is history and stays', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF NOT upper_inf(OLD.period) THEN
        RAISE EXCEPTION 'allocation % is closed and stays as it is', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.slots, NEW.unit_id, NEW.run_id, NEW.workload_id, NEW.project_id, lower(NEW.period))
       IS DISTINCT FROM (OLD.slots, OLD.unit_id, OLD.run_id, OLD.workload_id, OLD.project_id, lower(OLD.period)) THEN
        RAISE EXCEPTION 'allocation %: only its end is still open', OLD.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER allocations_are_history BEFORE UPDATE OR DELETE ON scheduler_allocation
    FOR EACH ROW EXECUTE FUNCTION scheduler_allocations_are_history();
"""

NO_STRANGER_ON_BOUND_SLOTS = """
CREATE FUNCTION scheduler_no_stranger_on_bound_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM scheduler_boundunit bound
        WHERE bound.slots && NEW.slots AND bound.period && NEW.period
          AND bound.reservation_id IS DISTINCT FROM NEW.reservation_id
    ) THEN
        RAISE EXCEPTION 'slots % are bound to another reservation', NEW.slots USING ERRCODE = 'exclusion_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER no_stranger_on_bound_slots BEFORE INSERT ON scheduler_allocation
    FOR EACH ROW EXECUTE FUNCTION scheduler_no_stranger_on_bound_slots();

CREATE FUNCTION scheduler_bind_only_free_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM scheduler_allocation held
        WHERE held.slots && NEW.slots AND held.period && NEW.period
          AND held.reservation_id IS DISTINCT FROM NEW.reservation_id
    ) THEN
        RAISE EXCEPTION 'slots % are held by work outside the reservation', NEW.slots USING ERRCODE = 'exclusion_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER bind_only_free_slots BEFORE INSERT ON scheduler_boundunit
    FOR EACH ROW EXECUTE FUNCTION scheduler_bind_only_free_slots();
"""

ONE_LEADER = "INSERT INTO scheduler_leader (id, epoch, holder) VALUES (1, 0, '') ON CONFLICT DO NOTHING"


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0001_initial")]

    operations = [
        migrations.RunSQL(GENERATION, "DROP SEQUENCE scheduler_generation"),
        migrations.RunSQL(
            ALLOCATIONS_ARE_HISTORY,
            "DROP TRIGGER allocations_are_history ON scheduler_allocation;"
            "DROP FUNCTION scheduler_allocations_are_history()",
        ),
        migrations.RunSQL(
            NO_STRANGER_ON_BOUND_SLOTS,
            "DROP TRIGGER no_stranger_on_bound_slots ON scheduler_allocation;"
            "DROP TRIGGER bind_only_free_slots ON scheduler_boundunit;"
            "DROP FUNCTION scheduler_no_stranger_on_bound_slots();"
            "DROP FUNCTION scheduler_bind_only_free_slots()",
        ),
        migrations.RunSQL(ONE_LEADER, migrations.RunSQL.noop),
    ]

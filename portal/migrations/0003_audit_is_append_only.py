"""What was done stays written: the table refuses UPDATE and DELETE, whoever asks, and the program's role may not TRUNCATE it."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION portal_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit records are append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON portal_auditevent
    FOR EACH ROW EXECUTE FUNCTION portal_audit_is_append_only();

DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gpupool_app') THEN
        REVOKE UPDATE, DELETE, TRUNCATE ON portal_auditevent FROM gpupool_app;
    END IF;
END $$;
"""

BACKWARD = """
DROP TRIGGER audit_is_append_only ON portal_auditevent;
DROP FUNCTION portal_audit_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("portal", "0002_initial")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]

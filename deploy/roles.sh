#!/bin/sh
# The image of PostgreSQL runs this script when it creates the cluster. The script creates the server's role,
# which may not change the schema.
set -eu
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -v password="$APP_PASSWORD" <<'SQL'
CREATE ROLE gpupool_app LOGIN PASSWORD :'password';
SQL

select json_build_object(
    'version', coalesce(max(version), 0),
    'encoding', current_setting('server_encoding'),
    'server', current_setting('server_version_num')::integer,
    'nonce', pg_catalog.gen_random_uuid()
)::text
from tenure.schema_version

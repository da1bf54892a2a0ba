select coalesce(max(version), 0) from tenure.schema_version

insert into tenure.schema_version (version, name) values ($1::integer, $2::text)

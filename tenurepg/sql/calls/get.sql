select coalesce(tenure.get($1::text, $2::integer)::text, '')

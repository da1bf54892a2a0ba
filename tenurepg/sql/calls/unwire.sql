select coalesce(tenure.unwire($1::integer)::text, '')

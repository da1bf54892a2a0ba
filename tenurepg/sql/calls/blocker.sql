select coalesce(tenure.blocker($1::text), '')

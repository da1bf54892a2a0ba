select tenure.list(nullif($1::text, '')::json, $2::integer)::text

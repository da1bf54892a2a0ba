select tenure.release($1::text, $2::text, $3::bigint, $4::text, $5::text, $6::integer, $7::boolean, $8::integer)::text

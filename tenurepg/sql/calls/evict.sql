select tenure.evict($1::text, $2::text, $3::text, $4::boolean, $5::boolean, $6::integer)::text

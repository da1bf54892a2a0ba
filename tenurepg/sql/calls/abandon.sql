select tenure.abandon($1::text, $2::text, $3::integer, $4::boolean, $5::integer)::text

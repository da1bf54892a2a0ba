select tenure.past($1::text, $2::integer, $3::integer)::text

select tenure.acquire($1::text, $2::text, $3::text, $4::bigint, $5::text, $6::bigint, $7::boolean, $8::boolean, $9::integer, $10::boolean, $11::integer)::text

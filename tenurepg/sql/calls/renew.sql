select tenure.renew($1::text::json, $2::boolean, $3::integer, $4::boolean, $5::integer)::text

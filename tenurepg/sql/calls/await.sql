select tenure.await($1::integer, $2::integer)

select tenure.enter($1, $2, $3, $4)

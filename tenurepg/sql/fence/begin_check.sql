select tenure.fence($1, $2, $3, $4)

select tenure.fence_chain($1, $2, $3, $4, $5, $6, $7)

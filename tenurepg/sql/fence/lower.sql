select tenure.fence_lower($1, $2, $3)

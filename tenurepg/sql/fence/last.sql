select token, "position", digest from tenure.last($1, $2)

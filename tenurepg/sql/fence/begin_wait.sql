set local tenure.fence_wait = $1

select token, position, digest from tenure_fence_lane where resource = ?1 and lane = coalesce(?2, x'')

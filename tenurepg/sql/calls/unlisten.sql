unlisten tenure

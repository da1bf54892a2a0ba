listen tenure

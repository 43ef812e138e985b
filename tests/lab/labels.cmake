set(UNITY ON)

set(SHARES 8)

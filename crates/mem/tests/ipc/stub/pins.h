/* Pinned memory of the host, as drivers have it. STUB_PIN=refuse: none is. The file that includes this gives the functions their names and statuses. */

static void *pins[64];

static int pin(void *at, size_t size) {
    const char *rule = getenv("STUB_PIN");
    if (!size || (rule && !strcmp(rule, "refuse")))
        return -1;
    for (int i = 0; i < 64; i++)
        if (!pins[i])
            return pins[i] = at, 0;
    return -1;
}

static int unpin(const void *at) {
    for (int i = 0; i < 64; i++)
        if (pins[i] == at)
            return pins[i] = NULL, 0;
    return -1;
}

/* For tests. */
u64 stub_pins(void) {
    u64 live = 0;
    for (int i = 0; i < 64; i++)
        live += pins[i] != NULL;
    return live;
}

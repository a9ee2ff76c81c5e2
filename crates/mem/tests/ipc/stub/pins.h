/* Pinned host memory, as drivers have it. With STUB_PIN=refuse no memory is pinned. The including file names the
 * functions and statuses. */

static void *pins[64];
static pthread_mutex_t pinning = PTHREAD_MUTEX_INITIALIZER;

static int pin(void *at, size_t size) {
    const char *rule = getenv("STUB_PIN");
    if (!size || (rule && !strcmp(rule, "refuse")))
        return -1;
    int failed = -1;
    pthread_mutex_lock(&pinning);
    for (int i = 0; i < 64 && failed; i++)
        if (!pins[i])
            pins[i] = at, failed = 0;
    pthread_mutex_unlock(&pinning);
    return failed;
}

static int unpin(const void *at) {
    int failed = -1;
    pthread_mutex_lock(&pinning);
    for (int i = 0; i < 64 && failed; i++)
        if (pins[i] == at)
            pins[i] = NULL, failed = 0;
    pthread_mutex_unlock(&pinning);
    return failed;
}

/* For tests. */
u64 stub_pins(void) {
    u64 live = 0;
    pthread_mutex_lock(&pinning);
    for (int i = 0; i < 64; i++)
        live += pins[i] != NULL;
    pthread_mutex_unlock(&pinning);
    return live;
}

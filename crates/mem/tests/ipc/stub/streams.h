/* Streams and events of the driver that cuda.c stands for, with the rule that copies take long. STUB_HOLD=bytes: what is copied on a stream, so many bytes or more
 * in one call, does not land, and nothing behind it on that stream, until stub_let_go; or until somebody waits for the stream, which is counted. */

struct stream {
    int live;
    u64 on, begun, landed;
    struct waiting {
        u64 to, from;
        size_t len;
    } waiting[64];
};
struct event {
    int live;
    struct stream *stream;
    u64 number;
};
static struct stream streams[64];
static struct event events[64];
static u64 blocked;

static struct stream *stream_of(void *stream) {
    struct stream *of = stream;
    return here() && of >= streams && of < streams + 64 && of->live && of->on == on() ? of : NULL;
}

static int land_stream(struct stream *of) {
    int failed = 0;
    for (; of->landed < of->begun; of->landed++) {
        struct waiting *next = &of->waiting[of->landed % 64];
        failed |= transfer(next->to, next->from, next->len);
    }
    return failed;
}

int cuStreamCreate(void **stream, unsigned flags) {
    if (!here() || flags != 1)
        return here() ? INVALID_VALUE : INVALID_CONTEXT;
    for (int i = 0; i < 64; i++)
        if (!streams[i].live)
            return streams[i] = (struct stream){.live = 1, .on = on()}, *stream = &streams[i], OK;
    return OUT_OF_MEMORY;
}

int cuStreamDestroy_v2(void *stream) {
    struct stream *of = (mine(), stream_of(stream));
    return of ? (land_stream(of), of->live = 0, OK) : INVALID_VALUE;
}

int cuStreamSynchronize(void *stream) {
    struct stream *of = stream_of(stream);
    if (!of)
        return INVALID_VALUE;
    blocked += of->landed < of->begun;
    return land_stream(of) ? INVALID_VALUE : OK;
}

int cuEventCreate(void **event, unsigned flags) {
    if (!here() || flags != 2)
        return here() ? INVALID_VALUE : INVALID_CONTEXT;
    for (int i = 0; i < 64; i++)
        if (!events[i].live)
            return events[i] = (struct event){.live = 1}, *event = &events[i], OK;
    return OUT_OF_MEMORY;
}

int cuEventDestroy_v2(void *event) { return here() ? (((struct event *)event)->live = 0, OK) : INVALID_CONTEXT; }

int cuEventRecord(void *event, void *stream) {
    struct stream *of = stream_of(stream);
    return of ? (((struct event *)event)->stream = of, ((struct event *)event)->number = of->begun, OK) : INVALID_VALUE;
}

int cuEventQuery(void *event) {
    struct event *of = event;
    return !here() ? INVALID_CONTEXT : of->stream && of->stream->landed < of->number ? NOT_READY : OK;
}

static int touchable(u64 at) {
    struct range *found = find(at);
    return !found || (found->on == on() && (found->more[0] != VIRTUAL || found->more[2]));
}

int cuMemcpyAsync(u64 to, u64 from, size_t size, void *stream) {
    const char *rule = getenv("STUB_HOLD");
    struct stream *of = stream_of(stream);
    if (!of)
        return INVALID_CONTEXT;
    if (!touchable(to) || !touchable(from))
        return INVALID_VALUE;
    if (of->landed == of->begun && !(rule && size >= strtoull(rule, NULL, 0)))
        return transfer(to, from, size) ? INVALID_VALUE : OK;
    if (of->begun - of->landed == 64)
        land_stream(of);
    of->waiting[of->begun++ % 64] = (struct waiting){to, from, size};
    return OK;
}

/* Pinned memory of the host. STUB_PIN=refuse: none is. */
static void *pins[64];
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    const char *rule = getenv("STUB_PIN");
    if (!here())
        return INVALID_CONTEXT;
    if (rule && !strcmp(rule, "refuse"))
        return OUT_OF_MEMORY;
    for (int i = 0; i < 64 && size && flags == 1; i++)
        if (!pins[i])
            return pins[i] = at, OK;
    return INVALID_VALUE;
}
int cuMemHostUnregister(void *at) {
    for (int i = 0; i < 64 && here(); i++)
        if (pins[i] == at)
            return pins[i] = NULL, OK;
    return INVALID_VALUE;
}

/* For tests. */
u64 stub_pins(void) {
    u64 live = 0;
    for (int i = 0; i < 64; i++)
        live += pins[i] != NULL;
    return live;
}
u64 stub_let_go(void) {
    int failed = 0;
    for (int i = 0; i < 64; i++)
        failed |= streams[i].live && land_stream(&streams[i]);
    return (u64)failed;
}
u64 stub_blocked(void) { return blocked; }
u64 stub_events(void) {
    u64 live = 0;
    for (int i = 0; i < 64; i++)
        live += (u64)events[i].live;
    return live;
}

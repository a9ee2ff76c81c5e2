/* Streams and events of a vendor's driver, with slow copies. With STUB_HOLD=bytes, a single copy of at least that many
 * bytes is held back, with all later copies of its stream. It lands at stub_let_go, or when a thread synchronizes the
 * stream, which is counted. A running kernel that copies wait for has the same effect. With STUB_LATE=n, a held copy
 * completes after n queries. The including file names the functions and statuses; "on" is the device or context of a
 * stream. */

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
static u64 blocked, made_streams;

static inline struct stream *find_stream(void *stream, u64 on) {
    struct stream *of = stream;
    return of >= streams && of < streams + 64 && of->live && of->on == on ? of : NULL;
}

static int land_stream(struct stream *of) {
    int failed = 0;
    for (; of->landed < of->begun; of->landed++) {
        struct waiting *next = &of->waiting[of->landed % 64];
        failed |= transfer(next->to, next->from, next->len);
    }
    return failed;
}

static struct stream *make_stream(u64 on) {
    for (int i = 0; i < 64; i++)
        if (!streams[i].live)
            return streams[i] = (struct stream){.live = 1, .on = on}, made_streams++, &streams[i];
    return NULL;
}

static int wait_for_stream(struct stream *of) { return blocked += of->landed < of->begun, land_stream(of); }

static struct event *make_event(void) {
    for (int i = 0; i < 64; i++)
        if (!events[i].live)
            return events[i] = (struct event){.live = 1}, &events[i];
    return NULL;
}

static void record_event(struct event *event, struct stream *of) { event->stream = of, event->number = of->begun; }
static int is_over(const struct event *event) {
    static u64 asked;
    const char *rule = getenv("STUB_LATE");
    if (!event->stream || event->stream->landed >= event->number)
        return 1;
    if (rule && ++asked % strtoull(rule, NULL, 0) == 0)
        land_stream(event->stream);
    return event->stream->landed >= event->number;
}

static int begin_copy(struct stream *of, u64 to, u64 from, size_t size) {
    const char *rule = getenv("STUB_HOLD");
    if (of->landed == of->begun && !(rule && size >= strtoull(rule, NULL, 0)))
        return transfer(to, from, size);
    if (of->begun - of->landed == 64)
        land_stream(of);
    of->waiting[of->begun++ % 64] = (struct waiting){to, from, size};
    return 0;
}

/* For tests. */
u64 stub_let_go(void) {
    int failed = 0;
    for (int i = 0; i < 64; i++)
        failed |= streams[i].live && land_stream(&streams[i]);
    return (u64)failed;
}
/* Lands the copies of the first stream that has any. */
u64 stub_let_go_one(void) {
    for (int i = 0; i < 64; i++)
        if (streams[i].live && streams[i].landed < streams[i].begun)
            return (u64)land_stream(&streams[i]);
    return 1;
}
u64 stub_blocked(void) { return blocked; }
/* The number of streams that were ever created. */
u64 stub_made_streams(void) { return made_streams; }
u64 stub_under_way(void) {
    u64 sum = 0;
    for (int i = 0; i < 64; i++)
        sum += streams[i].live ? streams[i].begun - streams[i].landed : 0;
    return sum;
}
u64 stub_events(void) {
    u64 live = 0;
    for (int i = 0; i < 64; i++)
        live += (u64)events[i].live;
    return live;
}

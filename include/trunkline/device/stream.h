// Streams: bytes from a kernel of one rank to the kernel of the same channel at another, in chunks, of which several may be in flight. The
// twin of crates/trunkline/src/device/stream.rs. Each end keeps its state in the window, so that a later kernel in either language can
// continue.
//
// Each chunk is sent on the next lane, with a flag of that lane. Chunks on different lanes may overtake each other, so a common flag could
// report the wrong chunk as arrived. The receiver reads the lanes in the same order, and returns a credit for each chunk that it has read.
//
// As in window.h every thread of the group makes the same calls; each thread copies its share.
#ifndef TRUNKLINE_DEVICE_STREAM_H
#define TRUNKLINE_DEVICE_STREAM_H

#include "trunkline/device/window.h"

namespace trunkline {

// Chunks are sent in multiples of this.
constexpr u64 GRANULE = 16;
// Words in a stream's first line, and the word behind the slot of a lane's flag: the number of bytes received over that lane.
constexpr u64 STREAM_SENT = 0;
constexpr u64 STREAM_RECEIVED = 8;
constexpr u64 STREAM_EXPECTED = 16;

// Returns the offset of the stream with a rank. The peer's end of it is at the offset for this rank's number.
TRUNKLINE_FN u64 stream_at(const Window &window, u32 with, u32 channel) {
    return window.streams_at + ((u64)with * window.channels + channel) * window.stream_bytes;
}
TRUNKLINE_FN u64 free_at(u64 stream) { return stream + LINE_BYTES; }
TRUNKLINE_FN u64 ready_at(u64 stream, u32 lane) {
    return stream + (2 + lane) * LINE_BYTES;
}
TRUNKLINE_FN u64 room_out(const Window &window, u64 stream, u64 nth) {
    return stream + (2 + (u64)window.lanes) * LINE_BYTES + nth % window.chunks * window.chunk;
}
TRUNKLINE_FN u64 room_in(const Window &window, u64 stream, u64 nth) {
    return room_out(window, stream, nth) + (window.chunks * window.chunk + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

TRUNKLINE_FN u64 *word_at(const Window &window, u64 at) { return (u64 *)(window.slots + at); }
TRUNKLINE_FN u64 padded(u64 len) { return (len + GRANULE - 1) / GRANULE * GRANULE; }

TRUNKLINE_FN bool has_stream(const Kernel &kernel, u32 with) {
    return kernel.window->chunks > 0 && with < kernel.window->ranks && with != kernel.window->rank;
}

// Copies bytes, one share per thread of a group, by words where addresses and length allow it.
TRUNKLINE_CALL void copy(const Group &group, void *to, const void *from, u64 len) {
    u64 words = ((u64)to | (u64)from) % 8 == 0 ? len / 8 : 0;
    for (u64 at = group.rank; at < words; at += group.size) ((u64 *)to)[at] = ((const u64 *)from)[at];
    for (u64 at = words * 8 + group.rank; at < len; at += group.size) ((u8 *)to)[at] = ((const u8 *)from)[at];
}

// Waits until there is room for the next chunk, because the receiver has read the chunk that used the room before. `nth` is its number.
TRUNKLINE_CALL Wait wait_room(Kernel &kernel, u32 to, u64 &nth) {
    const Window &window = *kernel.window;
    u64 stream = stream_at(window, to, kernel.channel), found = 0;
    Wait how = good();
    if (is_leader(kernel.group)) {
        nth = dev_load_relaxed(word_at(window, stream + STREAM_SENT));
        if (nth >= window.chunks) how = lead_wait(kernel, slot_at(window, free_at(stream), nullptr), nth + 1 - window.chunks, found);
    }
    return conclude(kernel, how, &nth, 1);
}

// Sends the bytes in the room of chunk `nth`.
TRUNKLINE_CALL Wait send_chunk(Kernel &kernel, u32 to, u64 nth, u64 len) {
    const Window &window = *kernel.window;
    u64 stream = stream_at(window, to, kernel.channel), theirs = stream_at(window, window.rank, kernel.channel);
    u32 lane = (u32)(nth % window.lanes);
    Post result = posted();
    meet(kernel.group);
    if (is_leader(kernel.group)) {
        Local from = local_at(window, room_out(window, stream, nth));
        Entry entries[2] = {entry_write(from, remote_at(window, to, room_in(window, theirs, nth)), padded(len)),
                            entry_raise(window, to, ready_at(theirs, lane), padded(len))};
        Ticket last;
        result = lead_post(kernel, lane, entries, 2, last);
        if (result.kind == POSTED) dev_store_relaxed(word_at(window, stream + STREAM_SENT), nth + 1);
    }
    return conclude(kernel, wait_of(result), nullptr, 0);
}

// Waits until the next chunk has arrived. `nth` is its number.
TRUNKLINE_CALL Wait wait_chunk(Kernel &kernel, u32 from, u64 len, u64 &nth) {
    const Window &window = *kernel.window;
    u64 stream = stream_at(window, from, kernel.channel), found = 0;
    Wait how = good();
    if (is_leader(kernel.group)) {
        u64 *received = word_at(window, stream + STREAM_RECEIVED);
        nth = dev_load_relaxed(received);
        u64 flag = ready_at(stream, (u32)(nth % window.lanes));
        u64 *taken = word_at(window, flag + STREAM_EXPECTED);
        u64 expected = dev_load_relaxed(taken) + padded(len);
        how = lead_wait(kernel, slot_at(window, flag, nullptr), expected, found);
        if (how.kind == GOOD) dev_store_relaxed(taken, expected);
        if (how.kind == GOOD) dev_store_relaxed(received, nth + 1);
    }
    return conclude(kernel, how, &nth, 1);
}

// Returns a credit to the sender, once all threads have read a chunk.
TRUNKLINE_CALL Wait free_chunk(Kernel &kernel, u32 from, u64 nth) {
    const Window &window = *kernel.window;
    Post result = posted();
    meet(kernel.group);
    if (is_leader(kernel.group)) {
        Entry entry = entry_raise(window, from, free_at(stream_at(window, window.rank, kernel.channel)), 1);
        Ticket last;
        result = lead_post(kernel, (u32)(nth % window.lanes), &entry, 1, last);
    }
    return conclude(kernel, wait_of(result), nullptr, 0);
}

// Copies a chunk into the next room towards a rank, and sends it.
TRUNKLINE_CALL Wait pass_on(Kernel &kernel, u32 to, const u8 *chunk, u64 len) {
    u64 nth = 0;
    if (wait_room(kernel, to, nth).kind != GOOD) return kernel.how;
    u64 room = room_out(*kernel.window, stream_at(*kernel.window, to, kernel.channel), nth);
    copy(kernel.group, kernel.window->slots + room, chunk, len);
    return send_chunk(kernel, to, nth, len);
}

// Sends bytes to a rank, whose kernel of the same channel must receive the same number. When it returns the bytes may be changed, but may
// still be in flight.
TRUNKLINE_CALL Wait send(Kernel &kernel, u32 to, const void *bytes, u64 len) {
    if (!is_good(kernel)) return kernel.how;
    if (!has_stream(kernel, to)) return refuse(kernel);
    u64 chunk = kernel.window->chunk;
    for (u64 at = 0; at < len && is_good(kernel); at += chunk)
        pass_on(kernel, to, (const u8 *)bytes + at, len - at < chunk ? len - at : chunk);
    return kernel.how;
}

// Processes each received chunk: every thread calls `take(came, at, len)`, with `came` in the window. The chunk is freed before `onward(at,
// len)`, so that ranks in a ring do not wait for each other.
template <class Take, class Onward>
TRUNKLINE_FN Wait each_chunk(Kernel &kernel, u32 from, u64 len, const Take &take, const Onward &onward) {
    const Window &window = *kernel.window;
    if (!is_good(kernel)) return kernel.how;
    if (!has_stream(kernel, from)) return refuse(kernel);
    u64 stream = stream_at(window, from, kernel.channel), nth = 0;
    for (u64 at = 0; at < len; at += window.chunk) {
        u64 piece = len - at < window.chunk ? len - at : window.chunk;
        if (wait_chunk(kernel, from, piece, nth).kind != GOOD) return kernel.how;
        const u8 *came = window.slots + room_in(window, stream, nth);
        take(came, at, piece);
        if (free_chunk(kernel, from, nth).kind != GOOD) return kernel.how;
        if (onward(at, piece).kind != GOOD) return kernel.how;
    }
    return kernel.how;
}

// The function objects for each_chunk.
struct CopyInto {
    const Group *group;
    u8 *into;
    TRUNKLINE_FN void operator()(const u8 *came, u64 at, u64 len) const { copy(*group, into + at, came, len); }
};

template <class T, class F>
struct ReduceInto {
    const Group *group;
    T *into;
    const F *f;
    TRUNKLINE_FN void operator()(const u8 *came, u64 at, u64 len) const {
        T *mine = into + at / sizeof(T);
        const T *theirs = (const T *)came;
        for (u64 nth = group->rank; nth < len / sizeof(T); nth += group->size) mine[nth] = (*f)(mine[nth], theirs[nth]);
    }
};

struct Stays {
    TRUNKLINE_FN Wait operator()(u64, u64) const { return good(); }
};

struct GoesOn {
    Kernel *kernel;
    u32 to;
    const u8 *bytes;
    TRUNKLINE_FN Wait operator()(u64 at, u64 len) const {
        // All threads must have finished their shares before the chunk is sent.
        meet(kernel->group);
        return pass_on(*kernel, to, bytes + at, len);
    }
};

// Receives bytes that a rank's kernel of the same channel sends. Both must name the same length.
TRUNKLINE_CALL Wait recv(Kernel &kernel, u32 from, void *into, u64 len) {
    return each_chunk(kernel, from, len, CopyInto{&kernel.group, (u8 *)into}, Stays{});
}

// Receives bytes of one rank, and sends them on to another, chunk by chunk.
TRUNKLINE_CALL Wait forward(Kernel &kernel, u32 from, u32 to, void *into, u64 len) {
    if (is_good(kernel) && !has_stream(kernel, to)) return refuse(kernel);
    return each_chunk(kernel, from, len, CopyInto{&kernel.group, (u8 *)into}, GoesOn{&kernel, to, (const u8 *)into});
}

// Receives `count` values of a rank, and replaces each value `mine` in `into` by `f(mine, theirs)`.
template <class T, class F>
TRUNKLINE_FN Wait reduce(Kernel &kernel, u32 from, T *into, u64 count, const F &f) {
    static_assert(GRANULE % sizeof(T) == 0, "a value lies in one chunk");
    return each_chunk(kernel, from, count * sizeof(T), ReduceInto<T, F>{&kernel.group, into, &f}, Stays{});
}

// As reduce, and sends the results on to another rank.
template <class T, class F>
TRUNKLINE_FN Wait reduce_forward(Kernel &kernel, u32 from, u32 to, T *into, u64 count, const F &f) {
    static_assert(GRANULE % sizeof(T) == 0, "a value lies in one chunk");
    if (is_good(kernel) && !has_stream(kernel, to)) return refuse(kernel);
    ReduceInto<T, F> take = {&kernel.group, into, &f};
    return each_chunk(kernel, from, count * sizeof(T), take, GoesOn{&kernel, to, (const u8 *)into});
}

}  // namespace trunkline

#endif

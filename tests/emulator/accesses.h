/* Loads, stores and exchanges between lanes, and their faults. */
#pragma once
#include "machine.h"

/* A store orders nothing by itself: two threads of a CTA are ordered by a barrier of the CTA, lanes of a warp by a
 * barrier of the warp as well, CTAs by nothing. A write that does not change the value counts as a replica: Triton has
 * every thread that holds a copy of a value store it. */
static void check_race(Cta *cta, const Warp *warp, Shadow *s, i32 is_shared, u32 at, u32 thread, i32 is_write,
                       i32 is_replica, u64 address) {
    u32 own = thread / LANES;
    if (!is_shared) {
        i32 is_foreign_write = s->write_cta && s->write_cta != cta->number;
        i32 is_foreign_read = s->read_by_ctas || (s->read_cta && s->read_cta != cta->number);
        if (is_foreign_write || (is_write && is_foreign_read))
            report(cta, RACE_BETWEEN_CTAS, at, thread, (is_foreign_write ? s->write_cta : s->read_cta) - 1, address, 0);
    }
    if (s->write_epoch == cta->epoch && s->write_thread != thread && !is_replica) {
        u32 writer = s->write_thread;
        if (writer / LANES != own)
            report(cta, RACE_IN_CTA, at, thread, writer, address, 0);
        else if (s->write_sync == warp->sync) /* two lanes of one store have the same step */
            report(cta, is_write && s->write_step == (u32)cta->steps ? LANES_DIFFER : RACE_IN_WARP, at, thread, writer,
                   address, 0);
    }
    if (is_write && s->read_epoch == cta->epoch) {
        u32 reader = s->read_thread;
        if (s->read_by_warps || reader / LANES != own)
            report(cta, RACE_IN_CTA, at, thread, reader, address, 0);
        else if ((s->read_by_lanes || reader != thread) && s->read_sync == warp->sync)
            report(cta, RACE_IN_WARP, at, thread, reader, address, 0);
    }
}

static void remember(const Cta *cta, const Warp *warp, Shadow *s, u32 thread, i32 is_write) {
    if (is_write) {
        s->write_cta = cta->number, s->write_epoch = cta->epoch, s->write_sync = warp->sync;
        s->write_step = cta->steps, s->write_thread = thread;
        return;
    }
    i32 is_later = s->read_epoch != cta->epoch;
    i32 is_same_warp = s->read_thread / LANES == thread / LANES;
    s->read_by_ctas |= s->read_cta && s->read_cta != cta->number;
    s->read_by_warps = !is_later && (s->read_by_warps || !is_same_warp);
    s->read_by_lanes = !is_later && is_same_warp && s->read_sync == warp->sync &&
                       (s->read_by_lanes || s->read_thread != thread);
    s->read_cta = cta->number, s->read_epoch = cta->epoch, s->read_sync = warp->sync, s->read_thread = thread;
}

static Space *space_of(Cta *cta, u64 begin, u64 end) {
    Launch *launch = cta->launch;
    i32 low = 0, high = launch->num_spaces;
    if (high && begin >= launch->spaces[cta->last_space].begin && end <= launch->spaces[cta->last_space].end)
        return &launch->spaces[cta->last_space];
    while (low < high) {
        i32 middle = (low + high) / 2;
        if (launch->spaces[middle].end <= begin) low = middle + 1; else high = middle;
    }
    if (low == launch->num_spaces || begin < launch->spaces[low].begin || end > launch->spaces[low].end) return NULL;
    cta->last_space = low;
    return &launch->spaces[low];
}

/* The address of a lane's access, or NULL if it is not allowed; `data` is what is written, NULL for a load. */
static u8 *checked(Cta *cta, const Warp *warp, i32 is_shared, u32 at, u32 thread, u64 address, u32 bytes, const u8 *data) {
    Space *space = is_shared ? &cta->shared : space_of(cta, address, address + bytes);
    if (address % bytes) return report(cta, MISALIGNED, at, thread, 0, address, bytes), NULL;
    if (!space || address < space->begin || address + bytes > space->end)
        return report(cta, OUT_OF_BOUNDS, at, thread, 0, address, bytes), NULL;
    u32 grain = 1u << space->shift;
    u8 *place = space->memory + (address - space->begin);
    for (u32 done = 0; done < bytes; done += grain) {
        u64 granule = (address + done - space->begin) >> space->shift;
        u8 flags = space->flags[granule];
        if (!(flags & (MAY_READ | MAY_WRITE)))
            return report(cta, OUT_OF_BOUNDS, at, thread, 0, address + done, bytes), NULL;
        if (data && !(flags & MAY_WRITE))
            return report(cta, READ_ONLY, at, thread, 0, address + done, bytes), NULL;
        if (!data && flags & IS_UNWRITTEN) report(cta, UNWRITTEN, at, thread, 0, address + done, bytes);
        Shadow *shadow = &space->shadow[granule];
        i32 is_replica = data && !(flags & IS_UNWRITTEN) && !memcmp(place + done, data + done, grain);
        check_race(cta, warp, shadow, is_shared, at, thread, data != NULL, is_replica, address + done);
        remember(cta, warp, shadow, thread, data != NULL);
        if (data) space->flags[granule] = (flags & ~IS_UNWRITTEN) | IS_WRITTEN;
    }
    return place;
}

static const u64 NOWHERE = ~0ull;
static inline u8 *value_of(const Warp *warp, i32 reg, u32 lane, u32 stride) { return warp->registers + reg + lane * stride; }

static u64 address_of(const Warp *warp, const Instruction *in, u32 lane, i32 is_shared) {
    const u8 *base = warp->registers + in->from[0];
    return (is_shared ? ((const u32 *)base)[lane] : ((const u64 *)base)[lane]) + in->offset;
}

static void load(Cta *cta, const Warp *warp, const Instruction *in, u32 at, u32 mask, u32 first, i32 is_shared) {
    u64 addresses[LANES]; /* a register may be both address and destination */
    u64 before = NOWHERE;
    for (u32 i = 0; i < LANES; i++) addresses[i] = mask >> i & 1 ? address_of(warp, in, i, is_shared) : 0;
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u8 *place = checked(cta, warp, is_shared, at, first + i, addresses[i], in->count * in->bytes, NULL);
        cta->launch->accesses[at] += addresses[i] != before, before = addresses[i];
        for (i32 k = 0; k < in->count; k++) {
            u8 *to = value_of(warp, in->to[k], i, in->stride);
            memset(to, place ? 0 : 0xff, in->stride); /* NaN if it must not be read */
            if (place) memcpy(to, place + k * in->bytes, in->bytes);
        }
    }
}

static void store(Cta *cta, const Warp *warp, const Instruction *in, u32 at, u32 mask, u32 first, i32 is_shared) {
    u64 before = NOWHERE;
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        u8 data[32];
        for (i32 k = 0; k < in->count; k++)
            memcpy(data + k * in->bytes, value_of(warp, in->from[1 + k], i, in->stride), in->bytes);
        u64 address = address_of(warp, in, i, is_shared);
        u8 *place = checked(cta, warp, is_shared, at, first + i, address, in->count * in->bytes, data);
        cta->launch->accesses[at] += address != before, before = address;
        if (place) memcpy(place, data, in->count * in->bytes);
    }
}

/* ldmatrix and stmatrix: row n % 8 of matrix n / 8 is the 16 bytes at lane n's address; lane i has two elements of row
 * i / 4 of each matrix. */
static void load_matrices(Cta *cta, const Warp *warp, const Instruction *in, u32 at, u32 first) {
    u16 rows[LANES][8];
    for (i32 n = 0; n < 8 * in->count; n++) {
        u8 *place = checked(cta, warp, 1, at, first + n, address_of(warp, in, n, 1), 16, NULL);
        if (place) memcpy(rows[n], place, 16); else memset(rows[n], 0xff, 16);
    }
    for (i32 k = 0; k < in->count; k++)
        for (u32 i = 0; i < LANES; i++) memcpy(value_of(warp, in->to[k], i, 4), &rows[8 * k + i / 4][i % 4 * 2], 4);
}

static void store_matrices(Cta *cta, const Warp *warp, const Instruction *in, u32 at, u32 first) {
    u16 rows[LANES][8];
    for (i32 k = 0; k < in->count; k++)
        for (u32 i = 0; i < LANES; i++) memcpy(&rows[8 * k + i / 4][i % 4 * 2], value_of(warp, in->from[1 + k], i, 4), 4);
    for (i32 n = 0; n < 8 * in->count; n++) {
        u8 *place = checked(cta, warp, 1, at, first + n, address_of(warp, in, n, 1), 16, (u8 *)rows[n]);
        if (place) memcpy(place, rows[n], 16);
    }
}

/* shfl.sync: lane i reads lane j's value where j is in its segment, else its own. */
enum { BUTTERFLY, UP, INDEX };
static void shuffle(Cta *cta, const Warp *warp, const Instruction *in, u32 at, u32 mask, u32 first, i32 how) {
    const u32 *value = (u32 *)(warp->registers + in->from[0]), *by = (u32 *)(warp->registers + in->from[1]);
    const u32 *limits = (u32 *)(warp->registers + in->from[2]), *members = (u32 *)(warp->registers + in->from[3]);
    u32 *to = (u32 *)(warp->registers + in->to[0]), result[LANES];
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        i32 step = by[i] & 31, segment = limits[i] >> 8 & 31, clamp = limits[i] & 31, low = i & segment;
        i32 high = low | (clamp & ~segment);
        i32 other = how == BUTTERFLY ? (i32)i ^ step : how == UP ? (i32)i - step : low | (step & ~segment);
        if (how == UP ? other < high : other > high) other = i;
        if (members[i] != mask || !(mask >> other & 1)) report(cta, ABSENT_LANES, at, first + i, other, 0, 0);
        result[i] = value[other];
    }
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) to[i] = result[i];
}

/* redux.sync.add: every lane gets the sum. */
static void add_lanes(Cta *cta, const Warp *warp, const Instruction *in, u32 at, u32 mask, u32 first) {
    const u32 *value = (u32 *)(warp->registers + in->from[0]), *members = (u32 *)(warp->registers + in->from[1]);
    u32 *to = (u32 *)(warp->registers + in->to[0]), total = 0;
    for (u32 i = 0; i < LANES; i++) {
        if (!(mask >> i & 1)) continue;
        if (members[i] != mask) report(cta, ABSENT_LANES, at, first + i, members[i], 0, 0);
        total += value[i];
    }
    for (u32 i = 0; i < LANES; i++)
        if (mask >> i & 1) to[i] = total;
}

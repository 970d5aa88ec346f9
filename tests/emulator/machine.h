/* Shared by the parts of the machine: a launch as Python describes it (library.py has the same structures), the state
 * of the running CTA, and the reports of faults.
 *
 * A register holds 32 values, one per lane of a warp, side by side: 32 floats, 32 integers of 2, 4 or 8 bytes, or 32
 * bytes of 0 and 1 for a predicate. It is named by its offset in the warp's register file. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;

enum { LANES = 32, NO_REGISTER = -1, MOST_REPORTS = 32, MOST_REPORTS_OF_A_KIND = 4 };
static const u32 ALL_LANES = 0xffffffffu;

#define KINDS(X)                                                                                                     \
    X(OUT_OF_BOUNDS, "out of bounds")                                                                                \
    X(MISALIGNED, "misaligned")                                                                                      \
    X(READ_ONLY, "write to an input")                                                                                \
    X(UNWRITTEN, "read of what was not written")                                                                     \
    X(RACE_IN_WARP, "race within a warp")                                                                            \
    X(RACE_IN_CTA, "race within a CTA")                                                                              \
    X(RACE_BETWEEN_CTAS, "race between CTAs")                                                                        \
    X(LANES_DIFFER, "lanes of one store write different values to one place")                                        \
    X(PARTED, "barrier or exit of some lanes of a warp")                                                             \
    X(BARRIERS_DIFFER, "warps wait at different barriers")                                                           \
    X(BARRIER_MISSED, "barrier that a warp never reaches")                                                           \
    X(ABSENT_LANES, "exchange with lanes that do not take part")                                                     \
    X(ENDLESS, "too many steps")

#define X(kind, text) kind,
typedef enum { KINDS(X) NUM_KINDS } Kind;
#undef X

typedef struct {
    i32 operation;
    i32 predicate;      /* register, or NO_REGISTER */
    i32 negated;        /* whether the predicate must be false */
    i32 target;         /* of a branch: an instruction */
    i32 count, bytes;   /* of an access: elements per lane, and the bytes of each */
    i32 stride;         /* of an access: bytes from one lane's value to the next in a register */
    i32 to[8], from[9]; /* registers; of an access, from[0] is the address and what follows is stored */
    i64 offset;         /* added to the address */
} Instruction;

typedef struct {
    u32 write_cta, write_epoch, write_sync, write_step; /* CTAs count from 1, so that 0 is none */
    u32 read_cta, read_epoch, read_sync;
    u16 write_thread, read_thread;
    u8 read_by_lanes, read_by_warps, read_by_ctas; /* whether by several of them */
} Shadow;                                          /* the last write to a granule, and the reads since the last barrier */

enum { MAY_READ = 1, MAY_WRITE = 2, IS_UNWRITTEN = 4, IS_WRITTEN = 8 };

typedef struct {
    u64 begin, end; /* addresses */
    u8 *memory;     /* the memory at begin */
    u8 *flags;      /* of each granule */
    Shadow *shadow; /* of each granule */
    i32 shift;      /* a granule has 1 << shift bytes */
    i32 is_shared;  /* shared memory, not accessible to other CTAs */
} Space;

typedef struct {
    i32 kind, at, cta, thread, other, bytes;
    u64 address;
} Report;

typedef struct {
    const Instruction *code;
    i32 code_size, threads, shared_bytes;
    i32 grid[3];       /* CTAs along x, y and z */
    i32 schedule;      /* of warps and CTAs: 0 ascending, 1 descending, else the seed of a random order */
    i32 noise;         /* seed of the errors of approximate instructions, 0 for none */
    i32 register_bytes;
    const u8 *registers; /* [register_bytes]: how a warp starts: constants and parameters; the rest is garbage */
    i32 thread_register, program_registers[3];
    Space *spaces; /* of global memory, ascending */
    i32 num_spaces, num_reports;
    Report *reports;
    u64 *executed, *lanes; /* [code_size]: how many warps and how many lanes executed an instruction; added to */
    u64 *accesses;         /* [code_size]: of a load or store: as lanes, but neighbours at the same place count once */
    u64 most_steps;        /* of a CTA */
} Launch;

typedef struct {
    u8 *registers;
    u32 at, sync; /* the next instruction; how many barriers of the warp it has passed */
    i32 has_exited, is_parted;
    u32 lane_at[LANES]; /* where each lane is while they diverge */
} Warp;

typedef struct {
    Launch *launch;
    Warp *warps;
    i32 num_warps, is_stopped;
    Space shared;
    i32 last_space;    /* where the last access was */
    u32 number, epoch; /* of the CTA, from 1; of all CTAs, one more after every barrier */
    u64 steps;
    u32 reports_of[NUM_KINDS];
} Cta;

static void report(Cta *cta, Kind kind, u32 at, u32 thread, u32 other, u64 address, u32 bytes) {
    Launch *launch = cta->launch;
    if (cta->reports_of[kind]++ >= MOST_REPORTS_OF_A_KIND || launch->num_reports >= MOST_REPORTS) return;
    launch->reports[launch->num_reports++] = (Report){kind, at, cta->number - 1, thread, other, bytes, address};
}

static void stop(Cta *cta, Kind kind, u32 at, u32 warp) {
    report(cta, kind, at, warp * LANES, 0, 0, 0);
    cta->is_stopped = 1;
}

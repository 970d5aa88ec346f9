/* Executes a launch: CTA after CTA; of a CTA, each warp until it waits at a barrier or has exited, in the order of the
 * schedule. Python has parsed the PTX (ptx.py); it rejects instructions that are not in a table. */
#include "accesses.h"
#include "arithmetic.h"

/* X(name, PTX) of instructions that are not arithmetic. */
#define OTHERS(X)                                                                                                    \
    X(POLICY, "createpolicy")                                                                                        \
    X(PACK_B32, "pack.b32") X(PACK_B64, "pack.b64") X(UNPACK_B32, "unpack.b32") X(UNPACK_B64, "unpack.b64")          \
    X(LD_GLOBAL, "ld.global") X(ST_GLOBAL, "st.global") X(LD_SHARED, "ld.shared") X(ST_SHARED, "st.shared")          \
    X(LDMATRIX, "ldmatrix") X(STMATRIX, "stmatrix")                                                                  \
    X(SHFL_BFLY, "shfl.sync.bfly.b32") X(SHFL_UP, "shfl.sync.up.b32")                                                \
    X(SHFL_IDX, "shfl.sync.idx.b32")                                                                                 \
    X(SETP_EQ_F16X2, "setp.eq.f16x2") X(SETP_EQ_BF16X2, "setp.eq.bf16x2")                                            \
    X(REDUX_ADD, "redux.sync.add.s32")                                                                               \
    X(WARP_SYNC, "bar.warp.sync") X(BAR_SYNC, "bar.sync") X(BRA, "bra") X(RET, "ret")

enum {
#define X(name, ...) name,
    ARITHMETIC(X) OTHERS(X)
#undef X
    NUM_OPERATIONS
};

static const char *const operations[] = {
#define X(name, ptx, ...) ptx,
    ARITHMETIC(X) OTHERS(X)
#undef X
};

/* Bytes of the result and of each operand of arithmetic instructions. */
static const u8 operand_sizes[][4] = {
#define X(name, ptx, T, A, B, C, expression) {sizeof(T), sizeof(A), sizeof(B), sizeof(C)},
    ARITHMETIC(X)
#undef X
};

static const char *const kinds[] = {
#define X(kind, text) text,
    KINDS(X)
#undef X
};

const char *operation_name(i32 i) { return i < NUM_OPERATIONS ? operations[i] : NULL; }
const char *kind_name(i32 i) { return i < NUM_KINDS ? kinds[i] : NULL; }
i32 operand_bytes(i32 operation, i32 k) { return operation < POLICY ? operand_sizes[operation][k] : 0; }
u64 size_of(i32 i) { return (u64[]){sizeof(Instruction), sizeof(Space), sizeof(Shadow), sizeof(Report), sizeof(Launch)}[i]; }

#define REGISTER(type, reg) ((type *)(warp->registers + (reg)))
#define IN_LANES(mask, statement)                                                                                    \
    if ((mask) == ALL_LANES) for (u32 i = 0; i < LANES; i++) { statement }                                           \
    else for (u32 i = 0; i < LANES; i++) if ((mask) >> i & 1) { statement }

static u32 lanes_where(const Warp *warp, const Instruction *in) {
    if (in->predicate == NO_REGISTER) return ALL_LANES;
    const u8 *predicate = REGISTER(u8, in->predicate);
    u32 mask = 0;
    for (u32 i = 0; i < LANES; i++) mask |= (u32)(predicate[i] != in->negated) << i;
    return mask;
}

/* Of two packed numbers each. */
#define EQUAL_HALVES(widened)                                                                                        \
    IN_LANES(mask, u32 a = REGISTER(u32, in->from[0])[i]; u32 b = REGISTER(u32, in->from[1])[i];                      \
             REGISTER(pred, in->to[0])[i] = widened(a) == widened(b);                                                 \
             REGISTER(pred, in->to[1])[i] = widened(a >> 16) == widened(b >> 16);)

/* Instructions after which the next one follows. */
static void execute(Cta *cta, Warp *warp, const Instruction *in, u32 at, u32 mask, u32 first) {
    switch (in->operation) {
#define X(name, ptx, T, A, B, C, expression)                                                                         \
    case name: {                                                                                                     \
        T *to = REGISTER(T, in->to[0]);                                                                              \
        const A *as = REGISTER(A, in->from[0]);                                                                      \
        const B *bs = REGISTER(B, in->from[1]);                                                                      \
        const C *cs = REGISTER(C, in->from[2]);                                                                      \
        IN_LANES(mask, A a = as[i]; B b = bs[i]; C c = cs[i]; (void)b; (void)c; to[i] = (T)(expression);)            \
        break;                                                                                                       \
    }
        ARITHMETIC(X)
#undef X
    case POLICY: break; /* a hint to the cache */
    case PACK_B32:
        IN_LANES(mask, REGISTER(u32, in->to[0])[i] = REGISTER(u16, in->from[0])[i] | (u32)REGISTER(u16, in->from[1])[i] << 16;)
        break;
    case PACK_B64:
        IN_LANES(mask, REGISTER(u64, in->to[0])[i] = REGISTER(u32, in->from[0])[i] | (u64)REGISTER(u32, in->from[1])[i] << 32;)
        break;
    case UNPACK_B32:
        IN_LANES(mask, u32 v = REGISTER(u32, in->from[0])[i]; REGISTER(u16, in->to[0])[i] = v; REGISTER(u16, in->to[1])[i] = v >> 16;)
        break;
    case UNPACK_B64:
        IN_LANES(mask, u64 v = REGISTER(u64, in->from[0])[i]; REGISTER(u32, in->to[0])[i] = v; REGISTER(u32, in->to[1])[i] = v >> 32;)
        break;
    case SETP_EQ_F16X2: EQUAL_HALVES(from_f16); break;
    case SETP_EQ_BF16X2: EQUAL_HALVES(from_bf16); break;
    case LD_GLOBAL: load(cta, warp, in, at, mask, first, 0); break;
    case LD_SHARED: load(cta, warp, in, at, mask, first, 1); break;
    case ST_GLOBAL: store(cta, warp, in, at, mask, first, 0); break;
    case ST_SHARED: store(cta, warp, in, at, mask, first, 1); break;
    case LDMATRIX:
        if (mask != ALL_LANES) report(cta, ABSENT_LANES, at, first, 0, 0, 0);
        load_matrices(cta, warp, in, at, first);
        break;
    case STMATRIX:
        if (mask != ALL_LANES) report(cta, ABSENT_LANES, at, first, 0, 0, 0);
        store_matrices(cta, warp, in, at, first);
        break;
    case SHFL_BFLY: shuffle(cta, warp, in, at, mask, first, BUTTERFLY); break;
    case SHFL_UP: shuffle(cta, warp, in, at, mask, first, UP); break;
    case SHFL_IDX: shuffle(cta, warp, in, at, mask, first, INDEX); break;
    case REDUX_ADD: add_lanes(cta, warp, in, at, mask, first); break;
    case WARP_SYNC:
        if (mask != ALL_LANES) report(cta, ABSENT_LANES, at, first, 0, 0, 0);
        warp->sync++;
        break;
    }
}

/* The lanes that continue: all of them, or after a divergent branch the ones furthest behind, so that they reconverge
 * where the branches do. */
static u32 next_lanes(Warp *warp) {
    if (!warp->is_parted) return ALL_LANES;
    u32 at = ~0u, lanes = 0;
    for (u32 i = 0; i < LANES; i++) {
        if (warp->lane_at[i] < at) at = warp->lane_at[i], lanes = 0;
        lanes |= (u32)(warp->lane_at[i] == at) << i;
    }
    warp->at = at, warp->is_parted = lanes != ALL_LANES;
    return lanes;
}

static void go_on(Warp *warp, u32 lanes, u32 at) {
    if (lanes == ALL_LANES) { warp->at = at; return; }
    for (u32 i = 0; i < LANES; i++)
        if (lanes >> i & 1) warp->lane_at[i] = at;
}

/* Runs until the warp waits at a barrier or all its lanes have exited. */
static void run_warp(Cta *cta, u32 number) {
    Launch *launch = cta->launch;
    Warp *warp = &cta->warps[number];
    while (!cta->is_stopped) {
        u32 lanes = next_lanes(warp), at = warp->at;
        const Instruction *in = &launch->code[at];
        u32 mask = lanes & lanes_where(warp, in);
        launch->executed[at]++, launch->lanes[at] += __builtin_popcount(mask);
        if (++cta->steps > launch->most_steps) return stop(cta, ENDLESS, at, number);
        if (in->operation == BRA && mask && mask != lanes) {
            for (u32 i = 0; i < LANES && lanes == ALL_LANES; i++) warp->lane_at[i] = at;
            go_on(warp, lanes & ~mask, at + 1), go_on(warp, mask, in->target);
            warp->is_parted = 1;
            continue;
        }
        go_on(warp, lanes, in->operation == BRA && mask ? in->target : (i32)at + 1);
        if ((in->operation == RET || in->operation == BAR_SYNC) && mask) {
            if (mask != ALL_LANES) return stop(cta, PARTED, at, number);
            warp->has_exited = in->operation == RET;
            return;
        }
        execute(cta, warp, in, at, mask, number * LANES);
    }
}

/* Release all warps from the barrier at which they wait; false if none waits. */
static i32 pass_barrier(Cta *cta) {
    i32 waiting = -1, exited = -1;
    for (i32 n = 0; n < cta->num_warps; n++) {
        Warp *warp = &cta->warps[n];
        if (warp->has_exited) { exited = n; continue; }
        if (waiting >= 0 && cta->warps[waiting].at != warp->at) stop(cta, BARRIERS_DIFFER, warp->at - 1, n);
        waiting = n;
    }
    if (waiting >= 0 && exited >= 0) stop(cta, BARRIER_MISSED, cta->warps[waiting].at - 1, exited);
    cta->epoch++;
    return waiting >= 0;
}

static void start_cta(Cta *cta, i32 program) {
    Launch *launch = cta->launch;
    cta->number = program + 1, cta->epoch++, cta->steps = 0;
    memset(cta->shared.memory, 0xff, launch->shared_bytes);
    memset(cta->shared.flags, MAY_READ | MAY_WRITE | IS_UNWRITTEN, launch->shared_bytes);
    for (i32 n = 0; n < cta->num_warps; n++) {
        u8 *registers = cta->warps[n].registers;
        memcpy(registers, launch->registers, launch->register_bytes);
        cta->warps[n] = (Warp){.registers = registers};
        for (u32 i = 0; i < LANES; i++) {
            ((u32 *)(registers + launch->thread_register))[i] = n * LANES + i;
            for (i32 axis = 0, rest = program; axis < 3; rest /= launch->grid[axis++])
                ((u32 *)(registers + launch->program_registers[axis]))[i] = rest % launch->grid[axis];
        }
    }
}

/* The order in which warps run between two barriers. */
static void make_order(i32 *order, i32 count, i32 schedule, u32 *seed) {
    for (i32 n = 0; n < count; n++) order[n] = schedule == 1 ? count - 1 - n : n;
    for (i32 n = count - 1; schedule > 1 && n > 0; n--) {
        *seed = scrambled(*seed + 0x9e3779b9u);
        i32 other = *seed % (n + 1), kept = order[n];
        order[n] = order[other], order[other] = kept;
    }
}

void run(Launch *launch) {
    i32 num_warps = launch->threads / LANES, order[64], shared_bytes = launch->shared_bytes;
    u32 seed = launch->schedule;
    noise_seed = launch->noise;
    Cta cta = {.launch = launch, .num_warps = num_warps, .warps = calloc(num_warps, sizeof(Warp))};
    cta.shared = (Space){0, shared_bytes, malloc(shared_bytes + 1), malloc(shared_bytes + 1), calloc(shared_bytes + 1, sizeof(Shadow)), 0, 1};
    u8 *registers = aligned_alloc(256, (size_t)num_warps * launch->register_bytes);
    for (i32 n = 0; n < num_warps; n++) cta.warps[n].registers = registers + (size_t)n * launch->register_bytes;
    i32 programs = launch->grid[0] * launch->grid[1] * launch->grid[2];
    for (i32 k = 0; k < programs && !cta.is_stopped; k++) {
        start_cta(&cta, launch->schedule ? programs - 1 - k : k);
        do {
            make_order(order, num_warps, launch->schedule, &seed);
            for (i32 n = 0; n < num_warps; n++)
                if (!cta.warps[order[n]].has_exited) run_warp(&cta, order[n]);
        } while (!cta.is_stopped && pass_barrier(&cta) && !cta.is_stopped);
    }
    free(registers), free(cta.warps), free(cta.shared.memory), free(cta.shared.flags), free(cta.shared.shadow);
}

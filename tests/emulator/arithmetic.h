/* The arithmetic instructions: each is one line of a table, an expression of its operands a, b, c.
 *
 * Approximate ones are exact here except for `noise`: relative errors as large as the PTX manual allows, a function of the
 * operand's bits, as on the hardware. */
#pragma once
#include "machine.h"

static i32 noise_seed;

static inline u32 bits_of(f32 x) { u32 u; memcpy(&u, &x, 4); return u; }
static inline f32 float_of(u32 u) { f32 x; memcpy(&x, &u, 4); return x; }
static inline u32 scrambled(u32 x) {
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    return x ^ x >> 16;
}
static inline f32 flushed(f32 x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
/* Between -1 and 1, from an operand's bits; 0 without noise, and if the result is also exact on the hardware. */
static inline f64 noise(f32 exact, f32 operand) {
    if (!noise_seed || !isfinite(exact) || exact == 0.0f) return 0.0;
    return scrambled(bits_of(operand) * 2654435761u + noise_seed) / 4294967295.0 * 2.0 - 1.0;
}
static inline f32 noisy(f32 exact, f32 operand) { return (f32)(exact * (1.0 + noise(exact, operand) * 0x1p-22)); }
static inline f32 power_of_2(f32 x) { return x == rintf(x) ? exp2f(x) : noisy(exp2f(x), x); }
static inline f32 inverse_root(f32 x) { return noisy((f32)(1.0 / sqrt(x)), x); }
static inline f32 hyperbolic_tangent(f32 x) { /* 2^-10.987 */
    f32 exact = tanhf(x);
    return (f32)(exact * (1.0 + noise(exact, x) * 0x1p-11 * 1.009));
}
static inline f32 quotient(f32 a, f32 b) { return noisy(a / b, a + 3 * b); }
static inline f32 larger(f32 a, f32 b) { return isnan(a) ? b : isnan(b) ? a : a > b || (a == b && !signbit(a)) ? a : b; }
static inline f32 smaller(f32 a, f32 b) { return isnan(a) ? b : isnan(b) ? a : a < b || (a == b && signbit(a)) ? a : b; }
static inline f32 or_nan(f32 a, f32 b, f32 otherwise) { return isnan(a) || isnan(b) ? float_of(0x7fffffffu) : otherwise; }
static inline f32 with_sign(f32 size, f32 a, f32 b) {
    return isnan(size) ? size : float_of(bits_of(size) | ((bits_of(a) ^ bits_of(b)) & 0x80000000u));
}
static inline u16 to_bf16(f32 x) {
    u32 u = bits_of(x);
    return isnan(x) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline f32 from_bf16(u16 h) { return float_of((u32)h << 16); }
static inline u16 to_f16(f32 x) { _Float16 h = x; u16 u; memcpy(&u, &h, 2); return isnan(x) ? 0x7fff : u; }
static inline f32 from_f16(u16 u) { _Float16 h; memcpy(&h, &u, 2); return h; }
static inline i32 to_i32(f32 x) { return isnan(x) ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (i32)x; }
/* bfe: PTX restricts `first` and `count` to 8 bits; bits beyond a's are copies of its sign. */
static inline u32 bits_from(i64 a, u8 first, u8 count) {
    return a >> (first < 32 ? first : 32) & (count < 32 ? (1u << count) - 1 : ~0u);
}
static inline i32 signed_bits_from(i32 a, u8 first, u8 count) {
    u32 bits = bits_from(a, first, count), sign = count < 32 ? 1u << count >> 1 : 0;
    return (bits ^ sign) - sign;
}

static inline u32 chosen_bytes(u64 bytes, u32 which) { /* each digit of `which` names one; 8 or more is its sign */
    u32 result = 0;
    for (u32 k = 0; k < 4; k++) {
        u32 digit = which >> 4 * k & 15, byte = bytes >> 8 * (digit & 7) & 0xff;
        result |= (digit & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * k;
    }
    return result;
}

/* X(name, PTX, type of the result, types of the operands, expression); `none` where there is no operand. */
typedef u8 pred;
typedef u8 none;
#define ARITHMETIC(X)                                                                                                \
    X(ADD_F32, "add.f32", f32, f32, f32, none, a + b)                                                                \
    X(SUB_F32, "sub.f32", f32, f32, f32, none, a - b)                                                                \
    X(MUL_F32, "mul.f32", f32, f32, f32, none, a * b)                                                                \
    X(FMA_F32, "fma.rn.f32", f32, f32, f32, f32, fmaf(a, b, c))                                                      \
    X(FMA_FTZ_F32, "fma.rn.ftz.f32", f32, f32, f32, f32, flushed(fmaf(flushed(a), flushed(b), flushed(c))))          \
    X(NEG_F32, "neg.f32", f32, f32, none, none, -a)                                                                  \
    X(ABS_F32, "abs.f32", f32, f32, none, none, fabsf(a))                                                            \
    X(MAX_F32, "max.f32", f32, f32, f32, none, larger(a, b))                                                         \
    X(MIN_F32, "min.f32", f32, f32, f32, none, smaller(a, b))                                                        \
    X(MAX_NAN_F32, "max.NaN.f32", f32, f32, f32, none, or_nan(a, b, larger(a, b)))                                   \
    X(MIN_NAN_F32, "min.NaN.f32", f32, f32, f32, none, or_nan(a, b, smaller(a, b)))                                  \
    X(MIN_XORSIGN_F32, "min.NaN.xorsign.abs.f32", f32, f32, f32, none,                                               \
      with_sign(or_nan(a, b, smaller(fabsf(a), fabsf(b))), a, b))                                                    \
    X(EX2_FTZ_F32, "ex2.approx.ftz.f32", f32, f32, none, none, flushed(power_of_2(flushed(a))))                      \
    X(EX2_F32, "ex2.approx.f32", f32, f32, none, none, power_of_2(a))                                                \
    X(RSQRT_FTZ_F32, "rsqrt.approx.ftz.f32", f32, f32, none, none, flushed(inverse_root(flushed(a))))                \
    X(TANH_F32, "tanh.approx.f32", f32, f32, none, none, hyperbolic_tangent(a))                                      \
    X(DIV_F32, "div.full.f32", f32, f32, f32, none, quotient(a, b))                                                  \
    X(ADD_S32, "add.s32", u32, u32, u32, none, a + b)                                                                \
    X(SUB_S32, "sub.s32", u32, u32, u32, none, a - b)                                                                \
    X(NEG_S32, "neg.s32", u32, u32, none, none, -a)                                                                  \
    X(MUL_LO_S32, "mul.lo.s32", u32, u32, u32, none, a * b)                                                          \
    X(MAD_LO_S32, "mad.lo.s32", u32, u32, u32, u32, a * b + c)                                                       \
    X(DIV_S32, "div.s32", i32, i32, i32, none, b == 0 ? -1 : (i64)a / b)                                             \
    X(MAX_S32, "max.s32", i32, i32, i32, none, a > b ? a : b)                                                        \
    X(MAX_U32, "max.u32", u32, u32, u32, none, a > b ? a : b)                                                        \
    X(MIN_S32, "min.s32", i32, i32, i32, none, a < b ? a : b)                                                        \
    X(MIN_S64, "min.s64", i64, i64, i64, none, a < b ? a : b)                                                        \
    X(ADD_S64, "add.s64", u64, u64, u64, none, a + b)                                                                \
    X(MUL_LO_S64, "mul.lo.s64", u64, u64, u64, none, a * b)                                                          \
    X(MUL_WIDE_U16, "mul.wide.u16", u32, u16, u16, none, (u32)a * b)                                                 \
    X(MUL_WIDE_S32, "mul.wide.s32", i64, i32, i32, none, (i64)a * b)                                                 \
    X(MUL_WIDE_U32, "mul.wide.u32", u64, u32, u32, none, (u64)a * b)                                                 \
    X(MAD_WIDE_U16, "mad.wide.u16", u32, u16, u16, u32, (u32)a * b + c)                                              \
    X(MAD_WIDE_S32, "mad.wide.s32", u64, i32, i32, u64, (u64)((i64)a * b) + c)                                       \
    X(MAD_WIDE_U32, "mad.wide.u32", u64, u32, u32, u64, (u64)a * b + c)                                              \
    X(SHL_B16, "shl.b16", u16, u16, u32, none, b > 15 ? 0 : a << b)                                                  \
    X(SHL_B32, "shl.b32", u32, u32, u32, none, b > 31 ? 0 : a << b)                                                  \
    X(SHL_B64, "shl.b64", u64, u64, u32, none, b > 63 ? 0 : a << b)                                                  \
    X(SHR_U16, "shr.u16", u16, u16, u32, none, b > 15 ? 0 : a >> b)                                                  \
    X(SHR_U32, "shr.u32", u32, u32, u32, none, b > 31 ? 0 : a >> b)                                                  \
    X(SHR_S32, "shr.s32", i32, i32, u32, none, a >> (b > 31 ? 31 : b))                                               \
    X(SHR_S64, "shr.s64", i64, i64, u32, none, a >> (b > 63 ? 63 : b))                                               \
    X(PRMT_B32, "prmt.b32", u32, u32, u32, u32, chosen_bytes(a | (u64)b << 32, c))                                   \
    X(BFE_U32, "bfe.u32", u32, u32, u32, u32, bits_from(a, b, c))                                                    \
    X(BFE_S32, "bfe.s32", i32, i32, u32, u32, signed_bits_from(a, b, c))                                             \
    X(AND_B16, "and.b16", u16, u16, u16, none, a & b)                                                                \
    X(AND_B32, "and.b32", u32, u32, u32, none, a & b)                                                                \
    X(OR_B16, "or.b16", u16, u16, u16, none, a | b)                                                                  \
    X(OR_B32, "or.b32", u32, u32, u32, none, a | b)                                                                  \
    X(OR_B64, "or.b64", u64, u64, u64, none, a | b)                                                                  \
    X(XOR_B32, "xor.b32", u32, u32, u32, none, a ^ b)                                                                \
    X(AND_B64, "and.b64", u64, u64, u64, none, a & b)                                                                \
    X(AND_PRED, "and.pred", pred, pred, pred, none, a & b)                                                           \
    X(OR_PRED, "or.pred", pred, pred, pred, none, a | b)                                                             \
    X(NOT_PRED, "not.pred", pred, pred, none, none, !a)                                                              \
    X(MOV_PRED, "mov.pred", pred, pred, none, none, a)                                                               \
    X(MOV_B16, "mov.b16", u16, u16, none, none, a)                                                                   \
    X(MOV_U16, "mov.u16", u16, u16, none, none, a)                                                                   \
    X(MOV_B32, "mov.b32", u32, u32, none, none, a)                                                                   \
    X(MOV_U32, "mov.u32", u32, u32, none, none, a)                                                                   \
    X(MOV_B64, "mov.b64", u64, u64, none, none, a)                                                                   \
    X(MOV_U64, "mov.u64", u64, u64, none, none, a)                                                                   \
    X(PARAM_B32, "ld.param.b32", u32, u32, none, none, a)                                                            \
    X(PARAM_B64, "ld.param.b64", u64, u64, none, none, a)                                                            \
    X(PARAM_S32, "ld.param.s32", i64, i32, none, none, a)                                                            \
    X(SELP_B16, "selp.b16", u16, u16, u16, pred, c ? a : b)                                                          \
    X(SELP_B32, "selp.b32", u32, u32, u32, pred, c ? a : b)                                                          \
    X(SELP_F32, "selp.f32", u32, u32, u32, pred, c ? a : b)                                                          \
    X(SELP_B64, "selp.b64", u64, u64, u64, pred, c ? a : b)                                                          \
    X(SETP_EQ_F32, "setp.eq.f32", pred, f32, f32, none, a == b)                                                      \
    X(SETP_NE_F32, "setp.ne.f32", pred, f32, f32, none, a < b || a > b)                                              \
    X(SETP_NEU_F32, "setp.neu.f32", pred, f32, f32, none, a != b)                                                    \
    X(SETP_LT_F32, "setp.lt.f32", pred, f32, f32, none, a < b)                                                       \
    X(SETP_LE_F32, "setp.le.f32", pred, f32, f32, none, a <= b)                                                      \
    X(SETP_GT_F32, "setp.gt.f32", pred, f32, f32, none, a > b)                                                       \
    X(SETP_GE_F32, "setp.ge.f32", pred, f32, f32, none, a >= b)                                                      \
    X(SETP_LEU_F32, "setp.leu.f32", pred, f32, f32, none, !(a > b))                                                  \
    X(SETP_GTU_F32, "setp.gtu.f32", pred, f32, f32, none, !(a <= b))                                                 \
    X(SETP_EQ_F16, "setp.eq.f16", pred, u16, u16, none, from_f16(a) == from_f16(b))                                  \
    X(SETP_EQ_BF16, "setp.eq.bf16", pred, u16, u16, none, from_bf16(a) == from_bf16(b))                              \
    X(SETP_NE_B16, "setp.ne.b16", pred, u16, u16, none, a != b)                                                      \
    X(SETP_EQ_B16, "setp.eq.b16", pred, u16, u16, none, a == b)                                                      \
    X(SETP_EQ_S16, "setp.eq.s16", pred, u16, u16, none, a == b)                                                      \
    X(SETP_EQ_B32, "setp.eq.b32", pred, u32, u32, none, a == b)                                                      \
    X(SETP_NE_B32, "setp.ne.b32", pred, u32, u32, none, a != b)                                                      \
    X(SETP_EQ_S32, "setp.eq.s32", pred, i32, i32, none, a == b)                                                      \
    X(SETP_NE_S32, "setp.ne.s32", pred, i32, i32, none, a != b)                                                      \
    X(SETP_LT_S32, "setp.lt.s32", pred, i32, i32, none, a < b)                                                       \
    X(SETP_LE_S32, "setp.le.s32", pred, i32, i32, none, a <= b)                                                      \
    X(SETP_GT_S32, "setp.gt.s32", pred, i32, i32, none, a > b)                                                       \
    X(SETP_GE_S32, "setp.ge.s32", pred, i32, i32, none, a >= b)                                                      \
    X(SETP_LT_U32, "setp.lt.u32", pred, u32, u32, none, a < b)                                                       \
    X(SETP_GT_U32, "setp.gt.u32", pred, u32, u32, none, a > b)                                                       \
    X(SETP_EQ_B64, "setp.eq.b64", pred, u64, u64, none, a == b)                                                      \
    X(SETP_NE_B64, "setp.ne.b64", pred, u64, u64, none, a != b)                                                      \
    X(SETP_EQ_S64, "setp.eq.s64", pred, i64, i64, none, a == b)                                                      \
    X(SETP_NE_S64, "setp.ne.s64", pred, i64, i64, none, a != b)                                                      \
    X(SETP_LT_S64, "setp.lt.s64", pred, i64, i64, none, a < b)                                                       \
    X(SETP_GT_S64, "setp.gt.s64", pred, i64, i64, none, a > b)                                                       \
    X(SETP_GE_S64, "setp.ge.s64", pred, i64, i64, none, a >= b)                                                      \
    X(SETP_LT_U64, "setp.lt.u64", pred, u64, u64, none, a < b)                                                       \
    X(CVT_F32_BF16, "cvt.f32.bf16", f32, u16, none, none, from_bf16(a))                                              \
    X(CVT_F32_F16, "cvt.f32.f16", f32, u16, none, none, from_f16(a))                                                 \
    X(CVT_BF16_F32, "cvt.rn.bf16.f32", u16, f32, none, none, to_bf16(a))                                             \
    X(CVT_F16_F32, "cvt.rn.f16.f32", u16, f32, none, none, to_f16(a))                                                \
    X(CVT_BF16X2_F32, "cvt.rn.bf16x2.f32", u32, f32, f32, none, (u32)to_bf16(a) << 16 | to_bf16(b))                  \
    X(CVT_F16X2_F32, "cvt.rn.f16x2.f32", u32, f32, f32, none, (u32)to_f16(a) << 16 | to_f16(b))                      \
    X(CVT_S64_S32, "cvt.s64.s32", i64, i32, none, none, a)                                                           \
    X(CVT_S64_S32_OF_B64, "cvt.s64.s32 of b64", i64, u64, none, none, (i32)a)                                        \
    X(CVT_U64_U32, "cvt.u64.u32", u64, u32, none, none, a)                                                           \
    X(CVT_U32_U64, "cvt.u32.u64", u32, u64, none, none, a)                                                           \
    X(CVT_U16_U32, "cvt.u16.u32", u16, u32, none, none, a)                                                           \
    X(CVT_U32_U16, "cvt.u32.u16", u32, u16, none, none, a)                                                           \
    X(CVT_F32_S32, "cvt.rn.f32.s32", f32, i32, none, none, a)                                                        \
    X(CVT_S32_F32, "cvt.rzi.s32.f32", i32, f32, none, none, to_i32(a))                                               \
    X(CVT_F32_U32, "cvt.rn.f32.u32", f32, u32, none, none, a)                                                        \
    X(CVT_F32_S64, "cvt.rn.f32.s64", f32, i64, none, none, a)                                                        \
    X(CVT_F32_F64, "cvt.rn.f32.f64", f32, f64, none, none, a)
